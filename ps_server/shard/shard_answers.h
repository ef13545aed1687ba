#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/job_config.pb.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/shard/calls/calls.h"
#include "ps_server/shard/incarnation.h"
#include "ps_server/shard/initial_values.h"
#include "ps_server/shard/rows/shard_tables.h"
#include "ps_server/shard/update_room.h"

namespace weir {

// The answers to a shard's calls: their replies, and the weights and rows that a pull gets.
//
// Belongs to the shard's queue, except where a method says so.
class ShardAnswers {
 public:
  // The shard's other parts, which outlive this object. `over`: as Shard::over_.
  struct Parts {
    const v1::JobConfig& config;
    const Incarnation& now;
    const UpdateRoom& room;
    const InitialValues& initial;
    const std::optional<absl::Status>& over;
    ShardCounters& counters;
  };
  ShardAnswers(const Parts& parts, SlabSource row_memory) : of_(parts), row_memory_(std::move(row_memory)) {}

  // The verdict on each call once the job is over.
  Verdict JobOver() const;
  PushAnswer ToPush(const Verdict& verdict) const;
  void Answer(const PushDone& done, const absl::StatusOr<Verdict>& verdict) const;
  v1::PullReply ToPull(const Verdict& verdict, bool with_clocks = false) const;
  // Answers the pull, unless it has to wait for pushes: then returns false.
  bool TryPull(const ParkedPull& pull);
  // Counts the weights of an answer. Any thread.
  void CountPulled(uint64_t elements, v1::Dtype dtype);

 private:
  // Fills in what a push and a pull are both told.
  template <typename Reply>
  void Fill(const Verdict& verdict, Reply& reply) const;

  const Parts of_;
  // For the rows in answers.
  RowMemory row_memory_;
};

}  // namespace weir
