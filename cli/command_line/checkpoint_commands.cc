#include "cli/command_line/checkpoint_commands.h"

#include <memory>
#include <string>
#include <vector>

#include "cli/command_line/shared_options.h"
#include "cli/commands/checkpoint_command.h"
#include "cli/commands/import_command.h"
#include "cli/commands/table_command.h"
#include "cli/local_cluster/other_program.h"

namespace weir {

constexpr const char* kCheckpointExamples = R"(Examples:
  weir checkpoint take --address=127.0.0.1:2222
  weir checkpoint list runs/digits
  weir checkpoint verify runs/digits/step-00001200)";

void AddCheckpointCommands(Commands& commands) {
  CLI::App* group =
      commands.AddGroup("checkpoint", "Takes, lists and verifies checkpoints", kCheckpointExamples);

  const auto cluster = std::make_shared<ClusterFlags>();
  CLI::App* take =
      group->add_subcommand("take", "Makes a running job take a checkpoint now, and waits for it");
  AddCluster(take, cluster.get());
  commands.OnRun(take, [cluster] { return RunCheckpointTake(*cluster); });

  const auto path = std::make_shared<std::string>();
  CLI::App* list = group->add_subcommand("list", "Lists those in a folder");
  AddCheckpoint(list, path.get(), "The folder (checkpoint.directory)");
  commands.OnRun(list, [path] { return RunCheckpointList(*path); });

  CLI::App* verify =
      group->add_subcommand("verify", "Checks all bytes of a checkpoint against its checksums");
  AddCheckpoint(verify, path.get(), kOneCheckpoint);
  commands.OnRun(verify, [path] { return RunCheckpointVerify(*path); });
}

constexpr const char* kTableExamples = R"(Examples:
  weir table stats --address=127.0.0.1:2222
  weir table stats users --checkpoint=runs/clicks --json
  weir table get users 42 17 --address=127.0.0.1:2222 --slots)";

void AddTableCommands(Commands& commands) {
  CLI::App* group = commands.AddGroup(
      "table", "Looks at the embedding tables of a running job or a checkpoint", kTableExamples);
  const auto options = std::make_shared<TableOptions>();
  CLI::App* stats =
      group->add_subcommand("stats", "Says how many rows they have, and which keys are the hottest");
  CLI::App* get = group->add_subcommand("get", "Prints the rows of some keys");
  stats->add_option("table", options->table, "One table (default: all)")->type_name("NAME");
  get->add_option("table", options->table, "The table")->type_name("NAME")->required();
  get->add_option("key", options->keys, "Keys, from 0 to 2^64 - 1")
      ->type_name("KEY")
      ->check(WholeNumber())
      ->required();
  get->add_flag("--slots", options->slots, "Prints what the optimizer keeps for each row, too");
  for (CLI::App* command : {stats, get}) {
    const std::vector<CLI::Option*> job = AddCluster(command, &options->cluster);
    CLI::Option* saved = command->add_option("--checkpoint", options->checkpoint, kOneCheckpoint);
    saved->type_name("DIR");
    for (CLI::Option* option : job) saved->excludes(option);
    command->add_flag("--json", options->json, "Prints JSON");
  }
  commands.OnRun(stats, [options] { return RunTableStats(*options); });
  commands.OnRun(get, [options] { return RunTableGet(*options); });
}

constexpr const char* kExportExamples = R"(Examples:
  weir export runs/digits digits.safetensors
  weir export runs/model model.safetensors --with=initial.safetensors)";

void AddExportCommand(Commands& commands) {
  struct Options {
    std::string checkpoint, out, with;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      commands.Add("export", "Writes the weights of a checkpoint into one safetensors file", kExportExamples);
  AddCheckpoint(command, &options->checkpoint, kOneCheckpoint);
  command->add_option("out", options->out, "The file to write")->type_name("FILE")->required();
  command
      ->add_option(
          "--with", options->with,
          "A safetensors file of the program's model, whose tensors are added where the checkpoint has "
          "none of the name: frozen parameters and constants")
      ->type_name("FILE");
  commands.OnRun(command, [options] { return RunExport(options->checkpoint, options->out, options->with); });
}

constexpr const char* kImportExamples = R"(Examples:
  weir import digits.safetensors pretrained
  weir import model.safetensors pretrained --like=runs/model)";

void AddImportCommand(Commands& commands) {
  const auto options = std::make_shared<ImportOptions>();
  CLI::App* command = commands.Add(
      "import", "Makes a safetensors file initial weights, for checkpoint.init_from", kImportExamples);
  command->add_option("file", options->file, "The safetensors file")->type_name("FILE")->required();
  command->add_option("directory", options->directory, "The folder to write, new or without initial weights")
      ->type_name("DIR")
      ->required();
  command
      ->add_option("--like", options->like,
                   "A checkpoint of the same model: its order of tensors, and which are running statistics "
                   "(default: the order in the file, and PyTorch's names)")
      ->type_name("DIR");
  commands.OnRun(command, [options] { return RunImport(*options); });
}

constexpr const char* kReplayExamples = R"(Examples:
  weir replay runs/digits)";

void AddReplayCommand(Commands& commands) {
  const auto path = std::make_shared<std::string>();
  CLI::App* command = commands.Add(
      "replay", "Makes the weights of a bounded or async job again from its logs, and prints their SHA-256",
      kReplayExamples);
  AddCheckpoint(command, path.get(), "The job's folder of checkpoints (checkpoint.directory)");
  commands.OnRun(command, [command, path] {
    return BecomeProgram("ps_server", "ps_server", {"--replay", *path}, command->help());
  });
}

}  // namespace weir
