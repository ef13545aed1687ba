#include "common/telemetry/grpc_process.h"

#include <grpc/support/log.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/telemetry/logging.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "google/protobuf/stubs/logging.h"

namespace weir {
namespace {

// What gRPC 1.51 makes beside its pool of a thread for each core, and what a server or a client of ours
// makes.
constexpr int kThreadsOfGrpc = 6, kThreadsOfOurs = 10;
constexpr unsigned kLeastOfPool = 2, kMostOfPool = 16;

// gRPC warns of each handshake that fails, Protocol Buffers of each text that is not UTF-8. A stranger could
// fill the disk with them.
void Warn(const char* library, const std::string& message) {
  static Mutex mutex;
  static auto* const limits = new LogLimits(absl::Minutes(1), 100);
  std::optional<uint64_t> left_out;
  {
    MutexLock lock(mutex);
    left_out = limits->Due(message, absl::Now());
  }
  if (!left_out.has_value()) return;
  LogWarning(library, ": ", message,
             *left_out > 0 ? absl::StrCat("; and ", *left_out, " like it before") : "");
}

}  // namespace

void PrepareGrpc() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
  gpr_set_log_function([](gpr_log_func_args* args) {
    // What gRPC calls an error (a connection that was reset, say) is our error only if a call fails because
    // of it, and then that call reports it. gRPC also complains of each client over TLS that asks for its
    // server by an address: such a server has one certificate, whatever its name.
    const bool warns = args->severity == GPR_LOG_SEVERITY_ERROR &&
                       !absl::StartsWith(args->message, "No match found for server name");
    if (warns) return Warn("gRPC", args->message);
    LogDebug("gRPC: ", args->message);
  });
  google::protobuf::SetLogHandler(
      [](google::protobuf::LogLevel level, const char*, int, const std::string& message) {
        if (level >= google::protobuf::LOGLEVEL_ERROR) return Warn("protobuf", message);
        LogDebug("protobuf: ", message);
      });
}

absl::Status CheckRoomForGrpc() {
  // From the first check on, gRPC has its threads.
  static std::atomic<bool> checked = false;
  const unsigned pool = std::clamp(std::thread::hardware_concurrency(), kLeastOfPool, kMostOfPool);
  const int of_grpc = checked ? 0 : kThreadsOfGrpc + static_cast<int>(pool);
  const absl::Status room = CheckRoomForThreads(of_grpc + kThreadsOfOurs, "talk to other tasks");
  if (room.ok()) checked = true;
  return room;
}

}  // namespace weir
