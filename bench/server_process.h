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

// The program ps_server as a process on a free port, which ends with this object. It leaves no file behind,
// even if this process is killed. Used by one thread.
class ServerProcess {
 public:
  // Where the program is; "": beside this one. Called before the first server is started.
  static void SetProgram(const std::string& path);

  // The server listens when this returns. `job` is the job's config; `host` the interface; `tls` "" or its
  // files.
  static absl::StatusOr<std::unique_ptr<ServerProcess>> Start(const std::string& job, int index,
                                                              const std::string& host,
                                                              const TlsFiles& tls = {});

  const std::string& address() const { return address_; }
  pid_t pid() const { return process_->pid(); }
  // How the process ended; nullopt: it still runs at the deadline.
  std::optional<ProcessExit> Wait(std::chrono::steady_clock::time_point deadline) {
    return process_->Wait(deadline);
  }
  // What the process has printed so far.
  std::string Log() const;

 private:
  ServerProcess() = default;

  std::string address_;
  UniqueFd log_;
  std::unique_ptr<Subprocess> process_;
};

}  // namespace weir::bench
