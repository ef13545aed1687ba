#include "cli/command_line/about_commands.h"

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/command_line/command_reference.h"
#include "common/program/command_line.h"
#include "common/program/exit_codes.h"
#include "common/program/version.h"

namespace weir {
namespace {

// The command of these words, `app` itself if there are none; nullptr: there is no such command.
const CLI::App* FindCommand(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* command = &app;
  for (const std::string& word : words) {
    const std::vector<const CLI::App*> found =
        command->get_subcommands([&word](const CLI::App* sub) { return sub->get_name() == word; });
    if (found.empty()) return nullptr;
    command = found.front();
  }
  return command;
}

std::string Help(const CLI::App& command, const std::string& name) {
  return command.get_formatter()->make_help(&command, name, CLI::AppFormatMode::Normal);
}

// Adds a command that prints what `describe` makes of a command and its name, "weir checkpoint take".
void AddDescription(Commands& commands, const char* name, const char* what,
                    std::function<std::string(const CLI::App&, const std::string&)> describe) {
  CLI::App& app = commands.app();
  CLI::App* description = app.add_subcommand(name, what);
  const auto about = std::make_shared<std::vector<std::string>>();
  description->add_option("command", *about, "Its words: `checkpoint take`, say");
  commands.OnRun(description, [&app, about, describe]() -> int {
    const CLI::App* const command = FindCommand(app, *about);
    const std::string words = absl::StrJoin(*about, " ");
    if (command == nullptr) return BadCommandLine(app, absl::StrCat("there is no command '", words, "'"));
    std::fputs(describe(*command, about->empty() ? "weir" : absl::StrCat("weir ", words)).c_str(), stdout);
    return kExitOk;
  });
}

}  // namespace

void AddAboutCommands(Commands& commands) {
  CLI::App& app = commands.app();
  commands.OnRun(app.add_subcommand("version", "Prints the version"), [] {
    std::printf("weir %s\n", kVersion);
    return kExitOk;
  });
  AddDescription(commands, "help", "Prints the help of a command, or this help", Help);
  AddDescription(commands, "man", "Prints the manual page of a command, or of weir, for man -l -",
                 ManualPage);
  CLI::App* completion = commands.Add("completion", "Prints a script that completes these commands in bash",
                                      "Examples:\n  . <(weir completion)");
  commands.OnRun(completion, [&app] {
    std::fputs(BashCompletion(app).c_str(), stdout);
    return kExitOk;
  });
}

}  // namespace weir
