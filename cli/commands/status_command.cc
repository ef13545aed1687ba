// `weir status`: asks the coordinator of a running cluster.
#include <memory>

#include "cli/commands/commands.h"
#include "cli/report/format.h"
#include "cli/report/status_text.h"
#include "common/program/exit_codes.h"

namespace weir {
namespace {

struct StatusOptions {
  ClusterFlags cluster;
  bool json = false;
  bool why = false;  // shows what waits for what (WaitChain)
};

int RunStatus(const StatusOptions& options) {
  RunningJob job;
  if (const int refused = AskJob(options.cluster, &job); refused != kExitOk) return refused;
  return Print(options.json  ? MessageJson(job.status)
               : options.why ? WaitChain(job.status)
                             : StatusReport(job.status));
}

constexpr const char* kStatusExamples = R"(Examples:
  weir status --cluster=configs/cluster_2ps_2workers.json
  weir status --cluster=dns:ps=weir-ps:2
  weir status --address=127.0.0.1:2222 --json
  weir status --address=127.0.0.1:2222 --why)";

}  // namespace

void AddStatusCommand(Commands& commands) {
  const auto options = std::make_shared<StatusOptions>();
  CLI::App* command = commands.Add("status", "Show the status of a running job", kStatusExamples);
  AddCluster(command, &options->cluster);
  command->add_flag("--json", options->json, "Print JSON");
  command->add_flag("--why", options->why, "Show what waits for what, from server to server")
      ->excludes("--json");
  commands.OnRun(command, [options] { return RunStatus(*options); });
}

}  // namespace weir
