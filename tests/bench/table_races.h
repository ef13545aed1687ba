#pragma once

#include <cstdint>
#include <string>

#include "bench/host.h"
#include "tests/bench/table_targets.h"

namespace weir::bench {

// Measure embedding tables through real servers and the real client (row_contestants.h). Called while this
// process has only one thread.

// Row gather: a batch by PullRows(), over shared memory against the bare gather in one process, and over TCP
// against a raw socket loop with the same gather and the same bytes; rows of 16 and of 64 values.
void MeasureGather(uint64_t rows, int rounds, ServerHost* host, TableTargets* targets);

// Row plan: what a server takes that holds max_rows = `rows` rows of 16 values and is saved again and again
// while a worker pushes batches, against the sum of `weir config show`. `scratch`: a folder on a disk, for
// checkpoints.
void MeasurePlan(uint64_t rows, const std::string& scratch, ServerHost* host, TableTargets* targets);

// Row step: the steps a second of two workers on two servers, each of which reads the rows of a batch and
// pushes gradients for them, for `./dev bench peers`. Prints a line of JSON.
absl::Status PrintSteps(uint64_t rows, uint64_t dim, const std::string& transport, int steps,
                        ServerHost* host);

}  // namespace weir::bench
