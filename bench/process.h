#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/system/unique_fd.h"
#include "nlohmann/json.hpp"

namespace weir::bench {

// Move all bytes over a connected socket, or return false.
bool Receive(int fd, void* to, size_t bytes);
bool Send(int fd, const void* from, size_t bytes);

void SetNoDelay(int fd);

// Connects to "host:port". Calls `tune` with the socket before it connects.
absl::StatusOr<UniqueFd> DialTcp(const std::string& address, const std::function<void(int)>& tune);
// Waits for the next connection of a listener, which may be non-blocking.
UniqueFd Accept(const UniqueFd& listener);

// JSON messages, one per line, both ways over a connected stream socket. Used by one thread. If a call fails
// at the other end, the answer is {"error": "..."}, which Call() returns as a status.
class Control {
 public:
  explicit Control(UniqueFd fd) : fd_(std::move(fd)) {}

  absl::Status Send(const nlohmann::json& message);
  // DeadlineExceeded if no whole message has come until `deadline`.
  absl::StatusOr<nlohmann::json> Receive(
      std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max());
  absl::StatusOr<nlohmann::json> Call(const nlohmann::json& message);

 private:
  const UniqueFd fd_;
  std::string received_;
};

// A process that runs a function and ends. It is killed with this object, and with the thread that made it.
class Child {
 public:
  // Called only while this process has no other thread, because the child is a copy of it.
  static absl::StatusOr<std::unique_ptr<Child>> Fork(const std::function<absl::Status(Control&)>& body);
  ~Child();

  pid_t pid() const { return pid_; }
  Control& control() { return control_; }

 private:
  Child(pid_t pid, UniqueFd fd) : pid_(pid), control_(std::move(fd)) {}
  const pid_t pid_;
  Control control_;
};

// The resources that a process has used since it started.
struct Usage {
  double cpu_seconds = 0;
  int64_t minor_faults = 0;
  // Resident bytes now, and the most so far; shared pages count.
  int64_t resident_bytes = 0, peak_resident_bytes = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Usage, cpu_seconds, minor_faults, resident_bytes, peak_resident_bytes)
absl::StatusOr<Usage> UsageOf(pid_t pid);

}  // namespace weir::bench
