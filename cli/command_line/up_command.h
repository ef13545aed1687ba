#pragma once

#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/command_line/commands.h"

// `weir up JOB [FLAGS] [-- PROGRAM ARGS]`. What follows -- is another program's, so CLI11 must not read it.
namespace weir {

struct UpWords {
  int count = 0;                                    // of the words that come before --
  std::optional<std::vector<std::string>> program;  // those after it; nullopt: there is no --
};

// Any other command has all its words before --.
UpWords SplitOffProgram(int argc, char** argv);

// `program`: of UpWords.
void AddUpCommand(Commands& commands, std::optional<std::vector<std::string>> program);

// For a bad command line without --: if it is that of `up` and has a word too many, tells where -- belongs.
void HintAtDashes(const CLI::App& app, int argc, char** argv);

}  // namespace weir
