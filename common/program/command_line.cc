#include "common/program/command_line.h"

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/config/suggestion.h"
#include "common/config/written_path.h"
#include "common/program/exit_codes.h"
#include "common/program/help_formatter.h"
#include "common/program/version.h"
#include "common/system/environment.h"

namespace weir {
namespace {

// The words that may stand on the command line of `command`.
std::vector<std::string> Allowed(const CLI::App& command) {
  std::vector<std::string> words;
  for (const CLI::App* sub : command.get_subcommands({})) words.push_back(sub->get_name());
  for (const CLI::Option* option : command.get_options()) words.push_back(option->get_name());
  return words;
}

void SetFormatter(CLI::App& app, const std::shared_ptr<CLI::FormatterBase>& formatter) {
  app.formatter(formatter);
  for (CLI::App* sub : app.get_subcommands({})) SetFormatter(*sub, formatter);
}

void ExpandPaths(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (type != "FILE" && type != "DIR") continue;
    option->transform(CLI::Validator(
        [](std::string& path) {
          absl::StatusOr<std::string> expanded = ExpandedPath(path);
          if (!expanded.ok()) return std::string(expanded.status().message());
          path = *std::move(expanded);
          return std::string();
        },
        ""));
  }
  for (CLI::App* sub : app.get_subcommands({})) ExpandPaths(*sub);
}

}  // namespace

CLI::Option* FileOrVariable(CLI::Option* option, const char* variable) {
  const auto trim = [](std::string& path) {
    path = ValueIn(path);
    return std::string();
  };
  return option->envname(variable)->type_name("FILE")->transform(CLI::Validator(trim, ""));
}

int BadCommandLine(const CLI::App& app, const std::string& message) {
  const CLI::App* command = &app;
  std::string name = app.get_name();
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    absl::StrAppend(&name, " ", command->get_name());
  }
  const std::vector<std::string> allowed = Allowed(*command);
  std::string what = message;
  // For a misspelt command, CLI11 says that a command is missing.
  if (const std::vector<std::string> unknown = app.remaining(/*recurse=*/true); !unknown.empty()) {
    const std::string& word = unknown.front();
    what =
        absl::StrCat("'", word, "' is not known here", DidYouMean(word.substr(0, word.find('=')), allowed));
  }
  std::fprintf(stderr, "error: %s\nallowed after `%s`: %s\nsee `%s --help`\n", what.c_str(), name.c_str(),
               absl::StrJoin(allowed, ", ").c_str(), name.c_str());
  return kExitUsage;
}

std::optional<int> ReadCommandLine(CLI::App& app, int argc, char** argv) {
  SetFormatter(app, std::make_shared<HelpFormatter>());
  ExpandPaths(app);
  app.set_version_flag("--version", absl::StrCat(app.get_name(), " ", kVersion));
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::Success& success) {
    app.exit(success);
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    return BadCommandLine(app, error.what());
  }
}

}  // namespace weir
