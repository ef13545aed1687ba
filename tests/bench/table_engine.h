#pragma once

#include <cstddef>
#include <cstdint>

#include "tests/bench/table_targets.h"

namespace weir::bench {

// Measures the engine of embedding tables below the wire (ps_server/table), in this process, with row-wise
// Adagrad:
//
// growth    pushes of 4,096 new keys each, from an empty table to all rows: the slowest push over the median.
//           CPU time of the one thread that makes them, since another process would show as a pause
// memory    what rows, slots and index take, over rows * (row + slots + 24 B); by the table's own count, and
//           by the growth of the process
// look-ups  Read() of a batch: uniform over the rows, or by Zipf's law
// updates   Update() with a gradient for each of as many different rows, uniform
// saving    a checkpoint's way through a table of which a version is pinned: copies of 256 KiB of rows by
//           bucket and key, as one turn of a shard's queue makes them; the slowest of 99%, since others use
//           the machine
// bare      the limit of look-ups: the rows' addresses are known, their misses are prefetched, and their
//           values are copied out
//
// Rates are keys a second: the median of the rounds, in which all rows of the report take turns. The ratios
// of two threads over one are medians of the rounds, too.
void MeasureTableEngine(uint64_t rows, size_t dim, int rounds, TableTargets* targets);

// Returns the memory that MeasureTableEngine() takes at most, in bytes.
uint64_t TableEngineBytes(uint64_t rows, size_t dim);

}  // namespace weir::bench
