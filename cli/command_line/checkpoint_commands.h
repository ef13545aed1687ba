#pragma once

#include "cli/command_line/commands.h"

// The commands for checkpoints, and for the weights and embedding tables that are in them.
namespace weir {

void AddCheckpointCommands(Commands& commands);
void AddTableCommands(Commands& commands);
void AddExportCommand(Commands& commands);
void AddImportCommand(Commands& commands);
void AddReplayCommand(Commands& commands);

}  // namespace weir
