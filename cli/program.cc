#include "cli/program.h"

#include <optional>

#include "CLI/CLI.hpp"
#include "cli/commands/commands.h"
#include "cli/commands/up.h"
#include "common/program/command_line.h"

namespace weir {
namespace {

constexpr const char* kExamples = R"(Examples:
  weir demo
  weir up --ps=2 --workers=4 configs/digits.json
  weir up --ps=2 --workers=4 configs/digits.json --set 'consistency={"mode":"async"}' --summary=out.json
  weir run --config=job.json --cluster=dns:ps=weir-ps:2,worker=weir-worker:4 --task=pod
  weir slurm job.json --ps=2 --workers=8 --submit -- python train.py
  weir status --address=127.0.0.1:2222
  weir config show configs/digits.json --set optimizer.learning_rate=0.05
  weir checkpoint verify runs/digits
  weir manifest job.json --ps=4 --workers=16
  weir bench wire
  weir simulate job.json --workers=4,64,1024 --servers=8 --bandwidth=10Gbit --batch_time=50ms

Exit codes: 0 done; 1 a checkpoint is damaged; 64 bad command line; 70 internal fault, or training that cannot go on; 74 a disk is full; 78 bad config; 129 SIGHUP; 130 Ctrl-C; 138 a task was lost, try again; 143 SIGTERM.
`weir COMMAND --help` says more.)";

}  // namespace

int RunWeir(int argc, char** argv) {
  CLI::App app("Weir, a parameter server for stochastic gradient descent.", "weir");
  app.footer(kExamples);
  app.require_subcommand(1);

  const CommandWords words = SplitOffProgram(argc, argv);
  Commands commands(app, words.program);  // the help lists them in this order
  AddUpCommand(commands);
  AddRunCommand(commands);
  AddSlurmCommands(commands);
  AddStatusCommand(commands);
  AddDemoCommand(commands);
  AddConfigCommands(commands);
  AddCheckpointCommands(commands);
  AddTableCommands(commands);
  AddCertsCommands(commands);
  AddExportCommand(commands);
  AddImportCommand(commands);
  AddReplayCommand(commands);
  AddManifestCommand(commands);
  AddDataCommands(commands);
  AddBenchCommand(commands);
  AddDoctorCommand(commands);
  AddPredictCommands(commands);
  AddHostAgentCommand(commands);
  AddAboutCommands(commands);

  if (const std::optional<int> exit = ReadCommandLine(app, words.count, argv)) {
    if (!words.program.has_value()) HintAtDashes(app, argc, argv);
    return *exit;
  }
  return commands.Run();
}

}  // namespace weir
