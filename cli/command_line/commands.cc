#include "cli/command_line/commands.h"

#include <cstdlib>

namespace weir {

CLI::App* Commands::Add(const char* name, const char* what, const char* examples) {
  CLI::App* command = app_.add_subcommand(name, what);
  command->footer(examples);
  return command;
}

CLI::App* Commands::AddGroup(const char* name, const char* what, const char* examples) {
  CLI::App* group = Add(name, what, examples);
  group->require_subcommand(1);
  return group;
}

void Commands::OnRun(const CLI::App* command, Runner run) { runners_.emplace_back(command, std::move(run)); }

int Commands::Run() const {
  for (const auto& [command, run] : runners_) {
    if (command->parsed()) return run();
  }
  std::abort();  // a command has no runner
}

}  // namespace weir
