#include "common/telemetry/grpc_process.h"

#include <grpc/support/log.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/telemetry/logging.h"

namespace weir {

void PrepareGrpc() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
  gpr_set_log_function([](gpr_log_func_args* args) {
    // What gRPC calls an error (a connection that was reset, say) is our error only if a call fails because
    // of it, and then that call reports it. gRPC also complains of each client over TLS that asks for its
    // server by an address: such a server has one certificate, whatever its name.
    const bool warns = args->severity == GPR_LOG_SEVERITY_ERROR &&
                       !absl::StartsWith(args->message, "No match found for server name");
    Log(warns ? LogLevel::kWarning : LogLevel::kDebug, absl::StrCat("gRPC: ", args->message));
  });
}

}  // namespace weir
