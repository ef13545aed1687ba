#pragma once

#include <cstdint>
#include <string>

#include "bench/contest.h"
#include "tests/bench/table_targets.h"

namespace weir::bench {

// These functions measure embedding tables through real servers and the real client (row_contestants.h). They
// are called while this process has only one thread.

// Row gather: PullRows() of a batch, with rows of 16 and of 64 values. Over shared memory it is compared with
// the bare gather in one process. Over TCP it is compared with a raw socket loop with the same gather and the
// same bytes.
void MeasureGather(uint64_t rows, int rounds, ServerHost* host, TableTargets* targets);

// Row plan: the memory of a server against the sum of `weir config show`. The server holds max_rows = `rows`
// rows of 16 values, and takes checkpoints again and again while a worker pushes batches. `scratch`: a folder
// on a disk, for checkpoints.
void MeasurePlan(uint64_t rows, const std::string& scratch, ServerHost* host, TableTargets* targets);

// Row step, for `./dev bench peers`: the steps a second of two workers on two servers. In a step a worker
// reads the rows of a batch and pushes gradients for them. Prints a line of JSON.
absl::Status PrintSteps(uint64_t rows, uint64_t dim, const std::string& transport, int steps,
                        ServerHost* host);

}  // namespace weir::bench
