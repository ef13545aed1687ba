#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "proto/job_config.pb.h"

namespace weir {

// Returns whether a push is applied while it arrives, to weights and slots beside those that are read.
bool AppliesStreamed(const v1::JobConfig& config);

// How much memory a server of a job needs, as docs/memory.md has it. A plain value. Doubles are multiples of
// W, the bytes of the server's own weights; what says "at most" need not be there.
struct ServerMemory {
  bool streamed = false;
  uint32_t slots = 0;
  double held = 0;             // weights and slots
  double step = 0;             // the gradients without which nothing can be applied
  double arriving = 0;         // at most: gradients that arrive at once, `step` included
  double old_versions = 4;     // at most: those that workers and readers hold
  double overtaken = 0;        // at most: what was made of overtaken pushes
  double saved = 0;            // at most: a version while it is saved
  uint64_t chunk_bytes = 0;    // chunks on their way
  uint64_t storage_bytes = 0;  // at most: requests to object storage

  double least() const { return held + step; }
  double most() const { return held + arriving + old_versions + overtaken + saved; }
};

// For a job of so many workers.
ServerMemory ServerMemoryOf(const v1::JobConfig& config, uint32_t workers);

// The number of servers, of so many, that hold a part of the model: the first servers, so that each has at
// least server.min_shard_kib of weights. With embedding tables all servers do, as each holds a part of the
// tables' rows.
uint32_t ServersWithPart(const v1::JobConfig& config, int64_t elements, uint32_t servers);

// The bytes of the rows on each server in the tables that have max_rows, when they have as many: with their
// keys at least, or with their indexes as large as these become. Tables without max_rows are not counted.
struct TableMemory {
  double least = 0, most = 0;
};
TableMemory TableMemoryOf(const v1::JobConfig& config, uint64_t servers);

// The most bytes that a server takes for a model of so many elements, the largest shard's, without the
// program itself, the rows of tables without max_rows, and rows on their way.
uint64_t ServerBytes(const v1::JobConfig& config, uint32_t workers, int64_t elements, uint32_t servers);

// The bytes that a server may take: server.memory_limit_mib, or `machine_bytes` (0: not known) where these
// are less; 0: no limit is known.
struct MemoryLimit {
  double bytes = 0;
  bool of_config = false;

  // "server.memory_limit_mib allows 39.0 MiB"
  std::string ToString() const;
};
MemoryLimit MemoryLimitOf(const v1::JobConfig& config, uint64_t machine_bytes);

// "39.0 MiB"
std::string MemoryText(double bytes);

// Checks that a server can do one step at all with server.memory_limit_mib, or with `machine_bytes` where
// these are less (0: not known). The job has `workers` workers, its model lies on so many servers, and tables
// that have max_rows have all these rows. No client reads, nothing is saved, and no two pushes arrive at
// once. InvalidArgument: it cannot; says the sum and the limit.
absl::Status CheckServerMemory(const v1::JobConfig& config, uint32_t workers, int64_t elements,
                               uint64_t servers, uint64_t machine_bytes);

}  // namespace weir
