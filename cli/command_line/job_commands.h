#pragma once

#include "cli/command_line/commands.h"

// The commands that run tasks of a job, or ask them, besides `weir up`.
namespace weir {

void AddRunCommand(Commands& commands);
void AddStatusCommand(Commands& commands);
void AddDemoCommand(Commands& commands);

}  // namespace weir
