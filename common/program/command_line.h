#pragma once

#include <optional>
#include <string>

#include "CLI/CLI.hpp"

namespace weir {

// An option as people read it, in help and on manual pages.
struct OptionText {
  std::string name;         // "--ps=N", "--restart[=N]", "-h,--help"; "config FILE" for a word without a flag
  std::string description;  // "Servers [1 to 64; default: 1]"
};

OptionText Describe(const CLI::Option& option);

// Lists options as Describe() has them.
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool) const override;
  // These are in the name and the description.
  std::string make_option_opts(const CLI::Option*) const override { return ""; }
  std::string make_option_desc(const CLI::Option* option) const override;
  // The words without a flag, in the line of the usage.
  std::string make_option_usage(const CLI::Option* option) const override;
};

// Reads the command line of a program, and adds --version to it. nullopt: the program runs. Otherwise its
// exit code: help or the version was asked for and printed, or the command line is bad (kExitUsage). Then
// standard error says what is wrong with it, what is allowed there, and what was probably meant. The values
// of options of the types FILE and DIR are paths as people write them (common/config/written_text.h), and
// become plain ones.
std::optional<int> ReadCommandLine(CLI::App& app, int argc, char** argv);

// The option takes a file, which an environment variable may name, too. Blanks and line ends around the name
// are no part of it (written_text.h).
CLI::Option* FileOrVariable(CLI::Option* option, const char* variable);

// Reports that the command that `app` has read so far is bad. Returns kExitUsage.
int BadCommandLine(const CLI::App& app, const std::string& message);

}  // namespace weir
