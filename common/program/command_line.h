#pragma once

#include <optional>

#include "CLI/CLI.hpp"

namespace weir {

// Reads the command line of a program, and adds --version to it. nullopt: the program runs. Otherwise its
// exit code: help or the version was asked for and printed, or the command line is bad (kExitUsage). Then
// standard error says what is wrong with it, what is allowed there, and what was probably meant. The values
// of options of the types FILE and DIR are paths as people write them (common/config/written_path.h), and
// become plain ones.
std::optional<int> ReadCommandLine(CLI::App& app, int argc, char** argv);

// The option takes a file, which an environment variable may name, too. Blanks and line ends around the name
// are no part of it (environment.h).
CLI::Option* FileOrVariable(CLI::Option* option, const char* variable);

// Reports that the command that `app` has read so far is bad. Returns kExitUsage.
int BadCommandLine(const CLI::App& app, const std::string& message);

}  // namespace weir
