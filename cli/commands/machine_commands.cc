// `weir doctor` and `weir bench`: what Weir finds on this machine, and how fast it is. `weir host-agent`:
// tasks on this machine for a `weir up` elsewhere.
#include <memory>

#include "cli/commands/commands.h"
#include "cli/hosts/host_agent.h"
#include "cli/installation/installation.h"
#include "cli/report/host_report.h"

namespace weir {
namespace {

constexpr const char* kDoctorExamples = R"(Examples:
  weir doctor
  weir doctor --json)";

constexpr const char* kBenchExamples = R"(Examples:
  weir bench wire
  weir bench wire --sizes=1KB,64MB,1GB --layouts=1x1,2x4 --optimizers=sgd,momentum,adam --json=wire.json
All flags: docs/flags.md
)";

}  // namespace

void AddDoctorCommand(Commands& commands) {
  const auto json = std::make_shared<bool>(false);
  CLI::App* command = commands.Add(
      "doctor", "Show what Weir finds on this machine: processor, memory, network, GPUs", kDoctorExamples);
  command->add_flag("--json", *json, "Print JSON");
  commands.OnRun(command, [json] {
    const HostReport report = LookAtHost();
    return Print(*json ? HostReportJson(report) : HostReportText(report));
  });
}

void AddBenchCommand(Commands& commands) {
  CLI::App* command =
      commands.Add("bench", "Measure how fast weights and gradients move on these machines", kBenchExamples);
  // The command's words are weir_bench's, --help included.
  command->prefix_command();
  command->set_help_flag();
  commands.OnRun(command, [command] {
    return BecomeProgram("bench", "weir_bench", command->remaining(), command->help());
  });
}

void AddHostAgentCommand(Commands& commands) {
  commands.OnRun(
      commands.app().add_subcommand(
          "host-agent", "Run tasks for `weir up --hosts`, which starts this command: not for people"),
      RunHostAgent);
}

}  // namespace weir
