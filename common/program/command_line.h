#pragma once

#include <optional>

#include "CLI/CLI.hpp"

namespace weir {

// Reads the command line of a program, which gets --version, too. nullopt: the program is to run. Else what
// it exits with: help or the version was asked for and printed, or the command line is bad (kExitUsage), and
// standard error says what is wrong with it, what is allowed there, and what was probably meant.
std::optional<int> ReadCommandLine(CLI::App& app, int argc, char** argv);

// Says of the command that `app` has read as far as it did that it is bad. Returns kExitUsage.
int BadCommandLine(const CLI::App& app, const std::string& message);

}  // namespace weir
