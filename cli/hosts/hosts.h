#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/hosts/host_connection.h"
#include "cli/hosts/host_list.h"

namespace weir {

// The hosts of one job, each with its connection. One thread uses the object.
class Hosts {
 public:
  struct Options {
    std::vector<Host> hosts;
    HostAccess access;
    bool copy = false;    // the working folder into access.directory of each host that has ssh in between
    std::string scratch;  // a folder for the copy's archive
    int stop_fd = -1;     // readable: waiting for hosts ends (Cancelled); -1: none
    std::function<HostNeeds(int host)> needs;
    std::function<void(const std::string& name, const std::string& content)> on_file;
  };
  // Connects with all hosts; a host that is no use is an error within 30 s, copies aside. Errors name every
  // such host, what was seen, and what to do. Then nothing is left on any host. Cancelled: Options::stop_fd.
  static absl::StatusOr<std::unique_ptr<Hosts>> Open(Options options);
  ~Hosts();
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  // The host's own, at which the other hosts reach it.
  const std::string& address(int host) const { return addresses_[host]; }
  const HostConnection& operator[](int host) const { return *connections_[host]; }

  // Connects with the host again if the connection has ended: then binaries and folders may be others.
  absl::Status Reconnect(int host);
  absl::Status Start(int host, const std::string& name, HostConnection::Task task) {
    return connections_[host]->Start(name, std::move(task));
  }
  void Signal(int host, const std::string& name, int signal) { connections_[host]->Signal(name, signal); }
  // HostConnection::Beat() of all.
  void Beat();

 private:
  explicit Hosts(Options options) : options_(std::move(options)) {}
  // Waits for a host until `end`, without leaving the others in silence: calls `wait`, which is to return
  // DeadlineExceeded if it has waited until `until` for nothing.
  absl::Status Await(std::chrono::steady_clock::time_point end,
                     const std::function<absl::Status(std::chrono::steady_clock::time_point until)>& wait);
  absl::Status Copy();
  absl::Status Connect(int host);
  absl::Status ChooseAddresses();
  // Calls `check` for each host, and returns what all errors say. Cancelled ends it at once.
  absl::Status ForEach(const std::function<absl::Status(int host)>& check);

  const Options options_;
  std::vector<std::unique_ptr<HostConnection>> connections_;  // by host
  std::vector<std::string> addresses_;
};

}  // namespace weir
