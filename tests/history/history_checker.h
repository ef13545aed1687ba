#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "tests/history/history_log.h"

namespace weir {

// Checks what workers saw of a job against the definitions of the three modes (docs/concepts.md).
// Independent: it knows the logs and the definitions, and shares no code with servers or client. Pure.
//
// Clocks, and which workers count. clock_k(w) at version v of shard k follows from the pushes alone: one more
// than the clock of w's last push that shard k applied up to v. A worker counts at v if one of its pushes was
// applied later. So a worker without further work, for which the servers no longer wait, does not count, and
// every worker with work does. The watermarks that came with a pull must list all workers that count, and
// must agree with the pushes for each worker that they list, counting or not.
//
// With `membership_changes` (workers die, join late, or come back under a new incarnation) logs may lack
// their end, and an incarnation may have left no log at all. A worker counts from each pull to the push that
// was computed from it. Events that the logs cannot show are not judged.
struct HistoryRules {
  enum class Mode { kSync, kBounded, kAsync };
  Mode mode = Mode::kBounded;
  // bounded: s.
  uint64_t staleness = 0;
  // bounded: workers pull ahead, so that a pull may lack their own newest s pushes as well.
  bool prefetch = false;
  // sync: R.
  uint32_t parts = 1;
  bool membership_changes = false;
  // Servers are killed and come back with the contents of a checkpoint: a shard may answer in several
  // incarnations, one after another, never in an earlier one again. Each incarnation is judged by itself:
  // pushes that an incarnation applied to weights of another one show as pushes without a pull. With
  // `membership_changes` only.
  bool server_restarts = false;
  // The rows of a batch and what its push adds to each, for jobs whose rows count (HistoryRow). Null: reads
  // of rows are not judged.
  std::function<std::vector<HistoryRow>(uint64_t batch)> rows_of_batch;
};

enum class HistoryRule {
  // Exactly one acknowledged push (in sync: one of each part) makes each version of a shard, with no gap, in
  // one incarnation of the shard, and no worker reads a version that was never made.
  kVersions,
  // The clocks of a worker's pushes are consecutive from 0 on each shard, their versions rise.
  kClocks,
  // Each batch is applied exactly once on each shard; a push stands for the same batch on all shards.
  kBatches,
  // bounded: a pull at clock c holds every update with clock <= c-s-1 of every worker that counts.
  kFreshness,
  // bounded, async: a pull at clock c holds the worker's own updates up to c-1; with `prefetch` to c-s-1.
  kOwnPushes,
  // sync: a pull at clock c reads version c.
  kStep,
  // Watermarks are those of the version that was sent, list the workers that count, and in bounded none is
  // below c-s.
  kWatermarks,
  // The versions that a worker reads of one shard never go back.
  kMonotonic,
  // The staleness in a push's answer = its version - 1 - the version that was pulled for it; 0 in sync.
  kStaleness,
  // bounded: a worker's clock after a push is at most s+1 above the slowest that counts.
  kLead,
  // A row has, at the version that was read, what the pushes up to that version have added, in all of its
  // values, and is always read from the same shard. Where logs may lack pushes it has no less, and between
  // two versions of a shard's incarnation it gains no less. The versions are those that a pull at the clock
  // may read (kFreshness, kOwnPushes, kStep), and with rising clocks a worker's never go back.
  kRows,
};
const char* Name(HistoryRule rule);

struct HistoryReport {
  // Answers with weights, answers to pushes that were applied: each shard's counts.
  uint64_t pulls = 0;
  uint64_t pushes = 0;
  // Rows that were read and judged.
  uint64_t rows = 0;
  // The largest lead (clock after a push - the slowest clock that counts). Not in sync.
  uint64_t max_lead = 0;
  // Versions that no log accounts for; a violation unless membership changes.
  uint64_t unaccounted_versions = 0;
  std::map<HistoryRule, uint64_t> violations;
  // Examples of the first few violations of each rule: where, and what was seen.
  std::vector<std::string> examples;

  uint64_t total() const;
  uint64_t count(HistoryRule rule) const;
  // All of the above as text, for people.
  std::string ToString() const;
};

// The events of all workers of a job. The events of one incarnation of a worker must be in the order of its
// log.
HistoryReport CheckHistory(absl::Span<const HistoryEvent> events, const HistoryRules& rules);

}  // namespace weir
