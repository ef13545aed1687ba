#pragma once

#include "cli/command_line/commands.h"

// The commands for what a job needs before it runs: its config, data, certificates and manifests, and a
// machine that is fit for it.
namespace weir {

void AddConfigCommands(Commands& commands);
void AddCertsCommands(Commands& commands);
void AddManifestCommand(Commands& commands);
void AddDataCommands(Commands& commands);
void AddBenchCommand(Commands& commands);
void AddDoctorCommand(Commands& commands);

}  // namespace weir
