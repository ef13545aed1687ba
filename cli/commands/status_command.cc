#include "cli/commands/status_command.h"

#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/commands/grpc_status_client.h"
#include "cli/report/message_json.h"
#include "cli/report/status_text.h"
#include "cli/report/wait_chain.h"
#include "common/program/exit_codes.h"
#include "common/rpc/job_token.h"
#include "common/rpc/tls.h"

namespace weir {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(5);

int Refuse(int exit_code, absl::string_view message) {
  std::fprintf(stderr, "error: %s\n", std::string(message).c_str());
  return exit_code;
}

}  // namespace

int RunStatus(const StatusOptions& options) {
  const absl::StatusOr<std::string> address = CoordinatorAddress(options.cluster);
  if (!address.ok()) {
    return Refuse(absl::IsInvalidArgument(address.status()) ? kExitUsage : kExitConfig,
                  address.status().message());
  }
  const absl::StatusOr<JobToken> token = JobToken::ReadIfGiven(options.cluster.token_file);
  if (!token.ok()) return Refuse(kExitConfig, token.status().message());
  const auto tls = Tls::ReadIfGiven(options.cluster.tls);
  if (!tls.ok()) return Refuse(kExitConfig, tls.status().message());
  const auto status = StatusClient(*address, *token, *tls).Get(kDeadline);
  if (!status.ok()) {
    const Refusal refusal = ExplainNoAnswer(*address, status.status(), tls->get());
    return Refuse(refusal.exit_code, refusal.message);
  }
  const std::string text = options.json  ? MessageJson(*status)
                           : options.why ? WaitChain(*status)
                                         : StatusReport(*status);
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
  return kExitOk;
}

}  // namespace weir
