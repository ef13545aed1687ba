// The commands that tell about the program itself: version, help, man and completion.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "cli/commands/commands.h"
#include "common/program/command_line.h"
#include "common/protocol/handshake.h"

namespace weir {
namespace {

bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

// Each command with its full name, `app` first.
void Collect(const CLI::App& app, const std::string& name,
             std::vector<std::pair<std::string, const CLI::App*>>* out) {
  out->emplace_back(name, &app);
  for (const CLI::App* sub : app.get_subcommands({})) {
    Collect(*sub, absl::StrCat(name, " ", sub->get_name()), out);
  }
}

// roff gives some characters a meaning of its own.
std::string Roff(absl::string_view text) {
  const std::string escaped = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}, {"`", "\\`"}});
  const bool control = !escaped.empty() && (escaped.front() == '.' || escaped.front() == '\'');
  return control ? absl::StrCat("\\&", escaped) : escaped;
}

// A script for bash that completes the commands, flags and files of `app`.
std::string BashCompletion(const CLI::App& app) {
  std::vector<std::pair<std::string, const CLI::App*>> commands;
  Collect(app, app.get_name(), &commands);
  std::vector<std::string> deeper;
  std::string words;
  for (const auto& [name, command] : commands) {
    if (command != &app) deeper.push_back(absl::StrCat("'", name, "'"));
    std::vector<std::string> list;
    for (const CLI::App* sub : command->get_subcommands({})) list.push_back(sub->get_name());
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& flag : option->get_lnames()) {
        list.push_back(absl::StrCat("--", flag, TakesValue(*option) ? "=" : ""));
      }
    }
    absl::StrAppend(&words, "    '", name, "') words='", absl::StrJoin(list, " "), "' ;;\n");
  }
  return absl::StrReplaceAll(
      R"(# Completes the command line of % in bash: . <(% completion)
_%() {
  local current=${COMP_WORDS[COMP_CWORD]} command=% words= word
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$command $word" in
      <commands>) command+=" $word" ;;
    esac
  done
  case $command in
<words>  esac
  # After "=" comes a value; bash cuts the word there.
  if [[ $current == = || ${COMP_WORDS[COMP_CWORD-1]} == = ]]; then
    mapfile -t COMPREPLY < <(compgen -f -- "${current#=}")
    return
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
  [[ ${#COMPREPLY[@]} -gt 0 ]] || mapfile -t COMPREPLY < <(compgen -f -- "$current")
  [[ ${#COMPREPLY[@]} -ne 1 || ${COMPREPLY[0]} != *= ]] || compopt -o nospace
}
complete -o filenames -F _% %
)",
      {{"<commands>", absl::StrJoin(deeper, "|")}, {"<words>", words}, {"%", app.get_name()}});
}

// The manual page of a command of `app` (or of `app` itself) in section 1, for man (man-pages(7), roff).
// `name`: with the commands above it, "weir checkpoint take".
std::string ManualPage(const CLI::App& command, const std::string& name) {
  const std::string title = absl::StrReplaceAll(name, {{" ", "-"}});
  std::string page = absl::StrCat(".TH \"", absl::AsciiStrToUpper(title), "\" 1 \"\" \"Weir ", kVersion,
                                  "\"\n.SH NAME\n", Roff(title), " \\- ", Roff(command.get_description()),
                                  "\n.SH SYNOPSIS\n.B ", Roff(name), "\n");
  std::string options;
  for (const CLI::Option* option : command.get_options()) {
    const std::string word = option->get_name(/*positional=*/option->get_positional());
    if (option->get_positional()) {
      absl::StrAppend(&page, ".I ", Roff(word), "\n");
    } else if (option->get_required()) {
      absl::StrAppend(&page, ".B ", Roff(word), "\n");
    }
    const OptionText text = Describe(*option);
    absl::StrAppend(&options, ".TP\n.B ", Roff(text.name), "\n", Roff(text.description), "\n");
  }
  if (!command.get_subcommands({}).empty()) absl::StrAppend(&page, ".I COMMAND\n");
  absl::StrAppend(&page, "[flags]\n.SH OPTIONS\n", options);
  std::string also;
  for (const CLI::App* sub : command.get_subcommands({})) {
    if (also.empty()) also = ".SH COMMANDS\n";
    absl::StrAppend(&also, ".TP\n.B ", Roff(sub->get_name()), "\n", Roff(sub->get_description()), "\n");
  }
  absl::StrAppend(&page, also);
  if (const std::string footer = command.get_footer(); !footer.empty()) {
    absl::StrAppend(&page, ".SH NOTES\n.nf\n");
    for (const absl::string_view line : absl::StrSplit(footer, '\n'))
      absl::StrAppend(&page, Roff(line), "\n");
    absl::StrAppend(&page, ".fi\n");
  }
  return page;
}

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
  description->add_option("command", *about, "The words of the command, such as `checkpoint take`");
  commands.OnRun(description, [&app, about, describe]() -> int {
    const CLI::App* const command = FindCommand(app, *about);
    const std::string words = absl::StrJoin(*about, " ");
    if (command == nullptr) return BadCommandLine(app, absl::StrCat("there is no command '", words, "'"));
    return Print(describe(*command, about->empty() ? "weir" : absl::StrCat("weir ", words)));
  });
}

}  // namespace

void AddAboutCommands(Commands& commands) {
  CLI::App& app = commands.app();
  commands.OnRun(app.add_subcommand("version", "Print the version"),
                 [] { return Print(absl::StrCat("weir ", kVersion, "\n")); });
  AddDescription(commands, "help", "Print the help of a command, or this help", Help);
  AddDescription(commands, "man", "Print the manual page of a command, or of weir, for man -l -", ManualPage);
  CLI::App* completion = commands.Add("completion", "Print a script that completes these commands in bash",
                                      "Examples:\n  . <(weir completion)");
  commands.OnRun(completion, [&app] { return Print(BashCompletion(app)); });
}

}  // namespace weir
