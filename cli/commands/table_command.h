#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/commands/coordinator_address.h"

// `weir table stats` and `weir table get`: look at the embedding tables of a running job or of a checkpoint.
namespace weir {

struct TableOptions {
  // The job, unless `checkpoint` names one, or a folder of them.
  ClusterFlags cluster;
  std::string checkpoint;
  // stats: one table; "": all.
  std::string table;
  bool json = false;
  // get:
  std::vector<uint64_t> keys;
  bool slots = false;
};

// Both return the exit code: 64, 78: there is no address, or no good one; 78: there is no such table or no
// checkpoint; 1: the checkpoint is damaged; 138: a server does not answer.
int RunTableStats(const TableOptions& options);
int RunTableGet(const TableOptions& options);

}  // namespace weir
