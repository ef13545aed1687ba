#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "tests/history/history_log.h"

namespace weir {

// Holds what workers saw of a job against the meanings of the three modes (docs/concepts.md). Independent: it
// knows the logs and the meanings, and shares no code with servers or client. Pure.
//
// Clocks and who counts. clock_k(w) at version v of shard k follows from the pushes alone: one more than the
// clock of w's last push that shard k applied up to v. A worker counts at v if one of its pushes was applied
// later: so whoever has no work any more, which the servers stop to wait for, does not count, and nobody
// who has any is overlooked. The watermarks that came with a pull must list all who count, and must agree
// with the pushes for each worker that they list, counting or not.
//
// With `membership_changes` (workers die, join late, or come back under a new life) logs may lack their
// end, a life may have left no log at all, and a worker counts from each pull to the push that was computed
// from it. What cannot be known from the logs is not judged.
struct HistoryRules {
  enum class Mode { kSync, kBounded, kAsync };
  Mode mode = Mode::kBounded;
  // bounded: s.
  uint64_t staleness = 0;
  // bounded: workers pull ahead, so that their own newest s pushes may be lacking as well.
  bool prefetch = false;
  // sync: R.
  uint32_t parts = 1;
  bool membership_changes = false;
  // Servers are killed and come back with what a checkpoint held: a shard may answer in several lives, one
  // after another, never in an earlier one again, and each life is judged by itself: pushes that a life
  // applied to weights of another one show as pushes without a pull. With `membership_changes` only.
  bool server_lives = false;
};

enum class HistoryRule {
  // Each version of a shard is made by exactly one acknowledged push (in sync: by one of each part), with no
  // gap, in one life of the shard, and nobody reads one that was never made.
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
  // Watermarks are those of the version that was sent, list who counts, and in bounded none is below c-s.
  kWatermarks,
  // The versions that a worker reads of one shard never go back.
  kMonotonic,
  // The staleness that a push is told = its version - 1 - the version that was pulled for it; 0 in sync.
  kStaleness,
  // bounded: a worker's clock after a push is at most s+1 above the slowest that counts.
  kLead,
};
const char* Name(HistoryRule rule);

struct HistoryReport {
  // Answers with weights, answers to pushes that were applied: each shard's counts.
  uint64_t pulls = 0;
  uint64_t pushes = 0;
  // The largest lead (clock after a push - the slowest clock that counts). Not in sync.
  uint64_t max_lead = 0;
  // Versions that no log accounts for; a violation unless membership changes.
  uint64_t unaccounted_versions = 0;
  std::map<HistoryRule, uint64_t> violations;
  // Of the first few of each rule: where, and what was seen.
  std::vector<std::string> examples;

  uint64_t total() const;
  uint64_t count(HistoryRule rule) const;
  // For people: all of the above.
  std::string ToString() const;
};

// The events of all workers of a job. Those of one worker's life must be in the order of its log.
HistoryReport CheckHistory(absl::Span<const HistoryEvent> events, const HistoryRules& rules);

}  // namespace weir
