#include "common/program/command_line.h"

#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/config/written_text.h"
#include "common/program/exit_codes.h"
#include "common/protocol/handshake.h"

namespace weir {
namespace {

constexpr char kRange[] = " in [";
constexpr size_t kRangeLength = sizeof(kRange) - 1;

// CLI11 has a value's name and what its checks allow in one text: "INT:INT in [1 - 64]", "TEXT:{a,b}". Takes
// the checks away from the end of `type`, and returns them in words: "1 to 64", "a, b".
std::vector<std::string> TakeChecks(std::string* type) {
  std::vector<std::string> checks;
  if (const size_t range = type->find(kRange); range != std::string::npos) {
    const std::string between = type->substr(range + kRangeLength, type->size() - range - kRangeLength - 1);
    checks.push_back(absl::StrReplaceAll(between, {{" - ", " to "}}));
    type->resize(type->rfind(':', range));
  } else if (const size_t set = type->find(":{"); set != std::string::npos) {
    const std::string between = type->substr(set + 2, type->size() - set - 3);
    checks.push_back(absl::StrReplaceAll(between, {{",", ", "}}));
    type->resize(set);
  }
  return checks;
}

// Other checks have a name that says no more than the value's.
std::string NameOfValue(const std::string& type) {
  if (absl::StartsWith(type, "INT") || absl::StartsWith(type, "UINT")) return "N";
  if (absl::StartsWith(type, "FLOAT")) return "NUMBER";
  return absl::StartsWith(type, "TEXT") ? "TEXT" : type;
}

bool TakesMany(const CLI::Option& option) {
  return option.get_expected_max() == CLI::detail::expected_max_vector_size;
}

std::string Flags(const CLI::Option& option) {
  std::vector<std::string> flags;
  for (const std::string& name : option.get_snames()) flags.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) flags.push_back("--" + name);
  return absl::StrJoin(flags, ",");
}

void AddOthers(absl::string_view what, const std::set<CLI::Option*>& options,
               std::vector<std::string>* facts) {
  if (options.empty()) return;
  // By name: the set has them in the order of their addresses, which differs from run to run.
  std::set<std::string> names;
  for (const CLI::Option* option : options) names.insert(option->get_name());
  facts->push_back(absl::StrCat(what, " ", absl::StrJoin(names, ", ")));
}

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

OptionText Describe(const CLI::Option& option) {
  const bool takes_value = option.get_items_expected_max() > 0;
  // A flag has one only if it may have a value.
  std::string type = option.get_type_name();
  std::vector<std::string> facts = TakeChecks(&type);
  const std::string value = NameOfValue(type);
  const bool positional = option.get_positional();
  OptionText text{positional ? option.get_name(/*positional=*/true) : Flags(option),
                  option.get_description()};
  if (positional) {
    if (!value.empty() && value != "TEXT") absl::StrAppend(&text.name, " ", value);
    if (TakesMany(option)) absl::StrAppend(&text.name, " ...");
  } else if (!value.empty()) {
    absl::StrAppend(&text.name, takes_value ? "=" : "[=", value, takes_value ? "" : "]");
  }
  if (option.get_required()) facts.push_back("required");
  if (takes_value && !option.get_default_str().empty()) {
    facts.push_back(absl::StrCat("default: ", option.get_default_str()));
  }
  if (!option.get_envname().empty()) facts.push_back(absl::StrCat("environment: ", option.get_envname()));
  AddOthers("with", option.get_needs(), &facts);
  AddOthers("not with", option.get_excludes(), &facts);
  if (!facts.empty()) absl::StrAppend(&text.description, " [", absl::StrJoin(facts, "; "), "]");
  return text;
}

std::string HelpFormatter::make_option_name(const CLI::Option* option, bool) const {
  return Describe(*option).name;
}

std::string HelpFormatter::make_option_desc(const CLI::Option* option) const {
  return Describe(*option).description;
}

std::string HelpFormatter::make_option_usage(const CLI::Option* option) const {
  const std::string word =
      absl::StrCat(option->get_name(/*positional=*/true), TakesMany(*option) ? "..." : "");
  return option->get_required() ? word : absl::StrCat("[", word, "]");
}

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
