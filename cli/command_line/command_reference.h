#pragma once

#include <string>

#include "CLI/CLI.hpp"

namespace weir {

// Descriptions of a program's command line besides its --help, made from the same definitions.

// A script for bash that completes the commands, flags and files of `app`.
std::string BashCompletion(const CLI::App& app);

// The manual page of a command of `app` (or of `app` itself) in section 1, for man (man-pages(7), roff).
// `name`: with the commands above it, "weir checkpoint take".
std::string ManualPage(const CLI::App& command, const std::string& name);

}  // namespace weir
