#pragma once

#include <string>

#include "proto/checkpoint.pb.h"

namespace weir {

// This process as a holder, from now on.
v1::FolderHolder ThisProcess();

// Whether the holder is another process that certainly runs: a process of this machine that runs as far as
// /proc shows and has not been told to die (by SIGKILL). A process that hangs or is stopped runs. Nothing is
// certain of other machines.
bool CertainlyRuns(const v1::FolderHolder& holder);

// "process 4711 on gpu-3, since 2026-11-22T11:00:00Z".
std::string Describe(const v1::FolderHolder& holder);

}  // namespace weir
