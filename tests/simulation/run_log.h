#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/protocol/interval_set.h"
#include "proto/coordinator.pb.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// The observations of one run: the answers to each worker, and, seen from outside the protocol, what each
// shard published and received. The invariants (invariants.h) are checked on this log after the run. Times
// are since the run's start.

// A shard's weights, and after them the rows of its keys (Ledger::KeysOf), if the job has a table. Weights
// that a worker reads in place, or computes from, are without rows. Shared, since many records refer to the
// same weights.
using Weights = std::shared_ptr<const std::vector<float>>;

// A worker computed a gradient and began to send it to all shards.
struct PushSent {
  absl::Duration at;
  uint64_t incarnation = 0;
  uint64_t clock = 0, batch = 0;
  // The versions that the push names as its base, and the weights that the gradient was computed from, by
  // shard.
  std::vector<v1::Version> base;
  std::vector<Weights> weights;
};

struct PushAnswered {
  absl::Duration at;
  uint32_t worker = 0;
  uint64_t incarnation = 0;
  uint32_t shard = 0;
  uint64_t clock = 0, batch = 0;
  v1::Version base;
  v1::PushReply reply;
};

// A worker's client has got the answer to a push.
struct PushHeard {
  // How many pushes had been sent before (RunLog::sent).
  size_t sent = 0;
  uint64_t incarnation = 0;
  uint32_t shard = 0;
  uint64_t clock = 0, batch = 0;
  bool took_effect = false;
  // All of the push had left by then. Else the client may have encoded all of it, or not.
  bool whole = false;
};

// A shard has disposed of a push: applied or refused it.
struct PushCompleted {
  absl::Duration at;
  uint64_t incarnation = 0;  // the worker's
  uint32_t shard = 0;
  uint64_t clock = 0;
};

struct PullAnswered {
  absl::Duration asked, at;
  uint32_t worker = 0;
  uint64_t incarnation = 0;
  uint32_t shard = 0;
  uint64_t clock = 0;
  // The number of a reader's pin, under which it reads all shards. 0 for workers.
  uint64_t pin = 0;
  v1::PullReply reply;
  // nullptr: no weights came.
  Weights weights;
};

// A worker was handed a tensor of a pull before a shard had said which version its weights are of.
struct ToldEarly {
  absl::Duration at;
  uint32_t worker = 0;
  uint32_t shard = 0;
  uint64_t clock = 0;
  size_t tensor = 0;
};

// A worker released a view whose weights had changed.
struct ChangedView {
  absl::Duration at;
  uint32_t worker = 0;
  uint32_t shard = 0;
  v1::Version version;
};

struct Joined {
  absl::Duration at;
  uint32_t worker = 0;
  uint64_t incarnation = 0;
  uint64_t start_clock = 0;
  bool reader = false;
};

// One event of a shard that changed its version. Rarely several versions at once.
struct Published {
  absl::Duration at;
  uint32_t shard = 0;
  uint64_t incarnation = 0;  // the shard's
  uint64_t from = 0, to = 0;
  Weights weights;
};

// How many rows and counts of keys a shard's table had at a version.
struct TableSeen {
  absl::Duration at;
  uint32_t shard = 0;
  uint64_t incarnation = 0;  // the shard's
  uint64_t version = 0;
  uint64_t rows = 0, counters = 0;
};

// sync, where rows take effect before their step: what became of the table of one process's shard, in the
// order in which it happened.
struct EarlyRowsEvent {
  enum class Kind {
    kBegun,      // an incarnation, with what it was told to begin with
    kPart,       // the shard has a part
    kCommitted,  // the open step
    kSeen,       // it is at this version, with these weights and rows
    kCounted,    // it has so many rows and counts of keys
  };
  Kind kind = Kind::kBegun;
  uint64_t process = 0;
  uint32_t shard = 0;
  uint64_t batch = 0;               // kPart
  uint64_t version = 0;             // kSeen
  Weights weights;                  // kSeen; null: they could not be read
  uint64_t rows = 0, counters = 0;  // kCounted
};

// A shard received a new membership, and holds it.
struct Installed {
  absl::Duration at;
  uint32_t shard = 0;
  uint64_t incarnation = 0;
  // The coordinator's incarnation.
  uint64_t coordinator = 0;
  // The shard's count of updates at that moment.
  uint64_t version = 0;
  v1::Membership membership;
};

// A shard reported its batches to its coordinator, when either of the two began anew: the coordinator relies
// on the report.
struct ToldBatches {
  uint32_t shard = 0;
  IntervalSet batches;
};

// A shard has a new model: at its start, or after a restore.
struct Restored {
  absl::Duration at;
  uint32_t shard = 0;
  uint64_t incarnation = 0;
  uint64_t version = 0;
  Weights weights;
};

// A checkpoint was complete and durable.
struct CheckpointSaved {
  absl::Duration at;
  uint64_t step = 0;
  std::vector<v1::Version> versions;  // by shard
  // A bit of it has flipped, perhaps while its commit still hung.
  bool damaged = false;
  // The incarnation of the coordinator that saved it.
  uint64_t coordinator = 0;
};

// A bit of a complete checkpoint has flipped.
struct BitFlipped {
  absl::Duration at;
  uint64_t step = 0;
};

// A coordinator has taken the store.
struct StoreTaken {
  absl::Duration at;
  uint64_t coordinator = 0;
  // The step of the newest checkpoint that it found.
  std::optional<uint64_t> step;
};

// A replaced coordinator has ended.
struct ReplacedEnd {
  absl::Duration at;
  int code = 0;
  std::string failure;
  // The job had ended before.
  bool job_over = false;
};

struct RunLog {
  std::vector<PushSent> sent;
  std::vector<PushAnswered> pushes;
  std::vector<PushHeard> heard;
  std::vector<PushCompleted> completed;  // only where shards drop pushes
  std::vector<PullAnswered> pulls;
  std::vector<ToldEarly> told_early;
  std::vector<ChangedView> changed_views;
  std::vector<Joined> joins;
  std::vector<Published> published;
  // By a replaced ps:0 whose successor's process already runs: its checkpoints count until the successor
  // takes the store.
  std::vector<Published> published_when_replaced;
  std::vector<TableSeen> tables;
  std::vector<EarlyRowsEvent> early_rows;
  std::vector<Installed> installed;
  std::vector<ToldBatches> told_batches;
  std::vector<Restored> restored;
  std::vector<CheckpointSaved> saved;
  std::vector<BitFlipped> flips;
  std::vector<StoreTaken> taken;
  std::vector<ReplacedEnd> replaced;
  // By shard: acknowledged pushes that it has declared lost, as counted at the end.
  std::map<uint32_t, uint64_t> lost;
  // By shard: the pushes that it has dropped as too stale, as counted at the end.
  std::map<uint32_t, uint64_t> dropped;
  // The pushes that the job's summary counts as lost, over all shards. nullopt: the coordinator came back
  // after the end, and has not seen the job.
  std::optional<uint64_t> lost_in_summary;
  // Messages of coordinators that found a damaged store at their start.
  std::vector<std::string> damage;
  // Protocol errors, and failed checks of actors.
  std::vector<std::string> complaints;

  // The end.
  bool ended = false;
  std::string failure;
  // By shard, at its last version; empty if the job failed.
  std::vector<Weights> final_weights;
  // Exit codes by task ("worker:1").
  std::map<std::string, int> exits;
  // The calls that still waited when time was up.
  std::vector<std::string> hanging;
};

}  // namespace weir
