#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/rpc/tls.h"
#include "common/system/subprocess.h"
#include "common/system/unique_fd.h"

namespace weir::bench {

// The program ps_server as a process on a free port. The process ends with this object, and leaves no file
// behind, even if the current process is killed. Used by one thread.
class ServerProcess {
 public:
  // `path`: the program; "": the ps_server beside this program. Called before the first server is started.
  static void SetProgram(const std::string& path);

  // Returns when the server listens. `job`: the job's config. `host`: the interface to listen on. `tls`: the
  // server's files; none named: no TLS.
  static absl::StatusOr<std::unique_ptr<ServerProcess>> Start(const std::string& job, int index,
                                                              const std::string& host,
                                                              const TlsFiles& tls = {});

  const std::string& address() const { return address_; }
  pid_t pid() const { return process_->pid(); }
  // Returns how the process ended; nullopt: it still ran at the deadline.
  std::optional<ProcessExit> Wait(std::chrono::steady_clock::time_point deadline) {
    return process_->Wait(deadline);
  }
  // Returns the process's output so far.
  std::string Log() const;

 private:
  ServerProcess() = default;

  std::string address_;
  UniqueFd log_;
  std::unique_ptr<Subprocess> process_;
};

}  // namespace weir::bench
