#pragma once

#include "cli/command_line/commands.h"

// The commands that tell about the program itself: version, help, man and completion.
namespace weir {

// They describe the commands of `commands`, those that are added later included.
void AddAboutCommands(Commands& commands);

}  // namespace weir
