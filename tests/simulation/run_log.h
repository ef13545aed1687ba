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

// What was seen of one run: what each worker was answered, and, from above, what each shard published and was
// told. The invariants (invariants.h) are checked on it after the run. Times are since the run's start.

// A shard's weights; shared, since many look at the same.
using Weights = std::shared_ptr<const std::vector<float>>;

// A worker computed a gradient and began to send it to all shards.
struct PushSent {
  absl::Duration at;
  uint64_t incarnation = 0;
  uint64_t clock = 0, batch = 0;
  // What it was computed from, by shard.
  std::vector<v1::Version> base;
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

struct PullAnswered {
  absl::Duration asked, at;
  uint32_t worker = 0;
  uint64_t incarnation = 0;
  uint32_t shard = 0;
  uint64_t clock = 0;
  // A reader's, which reads all shards under one pin: a number of its own. Else 0.
  uint64_t pin = 0;
  v1::PullReply reply;
  // nullptr: none came.
  Weights weights;
};

// A worker let weights go that it had read in place, and they were not what they had been.
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

// One event of a shard after which its version was another. Seldom several versions at once.
struct Published {
  absl::Duration at;
  uint32_t shard = 0;
  uint64_t life = 0;  // of the shard
  uint64_t from = 0, to = 0;
  Weights weights;
};

// A shard was told a new membership, and holds it.
struct Installed {
  absl::Duration at;
  uint32_t shard = 0;
  uint64_t life = 0;
  // The coordinator's.
  uint64_t coordinator = 0;
  // The shard's count of updates at that moment.
  uint64_t version = 0;
  v1::Membership membership;
};

// A shard told its coordinator which batches it held, when either of the two began anew: the coordinator
// counts on them.
struct ToldBatches {
  uint32_t shard = 0;
  IntervalSet batches;
};

// A shard has a new model: at its start, or after it was restored.
struct Restored {
  absl::Duration at;
  uint32_t shard = 0;
  uint64_t life = 0;
  uint64_t version = 0;
  Weights weights;
};

// A checkpoint was complete and durable.
struct CheckpointSaved {
  absl::Duration at;
  uint64_t step = 0;
  std::vector<v1::Version> versions;  // by shard
  // The incarnation of whoever saved it.
  uint64_t coordinator = 0;
};

// A coordinator has taken the store.
struct StoreTaken {
  absl::Duration at;
  uint64_t coordinator = 0;
  // Of the newest checkpoint that it found.
  std::optional<uint64_t> step;
};

// A coordinator that another one has taken the place of has ended.
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
  std::vector<PullAnswered> pulls;
  std::vector<ChangedView> changed_views;
  std::vector<Joined> joins;
  std::vector<Published> published;
  // By a ps:0 whose successor's process runs already: until that one takes the store, its checkpoints count.
  std::vector<Published> published_when_replaced;
  std::vector<Installed> installed;
  std::vector<ToldBatches> told_batches;
  std::vector<Restored> restored;
  std::vector<CheckpointSaved> saved;
  std::vector<StoreTaken> taken;
  std::vector<ReplacedEnd> replaced;
  // By shard: acknowledged pushes that it has declared lost, as it counts them in the end.
  std::map<uint32_t, uint64_t> lost;
  // The same in the job's summary, of all shards. nullopt: the coordinator came back after the end, and has
  // not seen the job.
  std::optional<uint64_t> lost_in_summary;
  // What a coordinator that started said of a store that it found damaged.
  std::vector<std::string> damage;
  // What a protocol error or an own check of an actor had to say.
  std::vector<std::string> complaints;

  // The end.
  bool ended = false;
  std::string failure;
  // By shard, as the last version was; empty if the job failed.
  std::vector<Weights> final_weights;
  // "worker:1": its exit code.
  std::map<std::string, int> exits;
  // What still waited when time was up.
  std::vector<std::string> hanging;
};

}  // namespace weir
