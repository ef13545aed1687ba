// `weir status`: asks the coordinator of a running cluster.
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/commands/commands.h"
#include "cli/commands/coordinator_address.h"
#include "cli/commands/grpc_status_client.h"
#include "cli/report/message_json.h"
#include "cli/report/status_text.h"
#include "cli/report/wait_chain.h"
#include "common/program/exit_codes.h"
#include "common/rpc/job_token.h"
#include "common/rpc/tls.h"

namespace weir {
namespace {

// `weir status`: asks the coordinator of a running cluster.
struct StatusOptions {
  ClusterFlags cluster;
  bool json = false;
  // Shows what waits for what (cli/report/wait_chain.h).
  bool why = false;
};

constexpr absl::Duration kDeadline = absl::Seconds(5);

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

constexpr const char* kStatusExamples = R"(Examples:
  weir status --cluster=configs/cluster_2ps_2workers.json
  weir status --cluster=dns:ps=weir-ps:2
  weir status --address=127.0.0.1:2222 --json
  weir status --address=127.0.0.1:2222 --why)";

}  // namespace

void AddStatusCommand(Commands& commands) {
  const auto options = std::make_shared<StatusOptions>();
  CLI::App* command = commands.Add("status", "Asks a running cluster how it is", kStatusExamples);
  AddCluster(command, &options->cluster);
  command->add_flag("--json", options->json, "Prints JSON");
  command->add_flag("--why", options->why, "Tells what waits for what, from server to server")
      ->excludes("--json");
  commands.OnRun(command, [options] { return RunStatus(*options); });
}

}  // namespace weir
