#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/system/clock.h"
#include "proto/shard_control.pb.h"
#include "ps_server/shard/calls/calls.h"
#include "ps_server/shard/calls/push_arrival.h"
#include "ps_server/shard/decision_log.h"
#include "ps_server/shard/incarnation.h"
#include "ps_server/shard/initial_values.h"
#include "ps_server/shard/update_room.h"

namespace weir {

// Says what the waiting calls of a shard wait for. If calls wait and none takes effect, the report writes the
// reason to the log, once for each standstill.
//
// The list shows what may wait for what. An entry waits only for entries below it, so there is no cycle:
//
//   a pull                           for pushes of other workers (WaitingCalls::parked)
//   a push of a later clock          for its worker's earlier pushes (WaitingCalls::held)
//   a push that has not begun        for the push that is streaming in, at most 25 ms after its last progress
//                                    (WaitingCalls::behind_stream)
//   sync: a part's answer            for the other parts of its step, and the coordinator's commit
//                                    (StagedParts)
//   the upload of initial values     for the other shards' parts of it, and the coordinator's word
//                                    (InitialValues)
//   a push that has arrived whole    for whole pushes before it; for memory of rows; with the log for
//   (WaitingCalls::ready)            decisions (DecisionLog), else for memory of weights
//   a commit                         for memory of rows and of weights (StagedParts::late_commit)
//   memory of rows                   for the checkpoint for which former rows are kept, which is written or
//                                    given up
//   a control message, and so a      with the log, for its writes and for the pending decisions
//   checkpoint, too                  (DecisionLog::Defer)
//   a decision                       for its record on the disk: a disk that hangs fails the shard; then for
//                                    memory of weights
//   memory of weights                for readers: at most ReaderLimits::patience (UpdateRoom)
//   a reader                         for nothing: its version no longer counts when its time is over
//
// A push that is still arriving is outside of this order. Only calls of its own worker wait for it, and calls
// that need that worker's clock; both waits end with the worker's lease. If a push was overtaken, it waits
// for nothing: it is answered at once, and its version delays no call.
//
// Belongs to the shard's queue.
class WaitReport {
 public:
  // The places where calls wait, and the peers that they wait for. These outlive the report.
  struct Sources {
    const Clock& clock;
    const Incarnation& now;
    const PushArrivals& arrivals;
    const WaitingCalls& calls;
    const DecisionLog& log;
    const InitialValues& initial;
    const UpdateRoom& room;
  };
  explicit WaitReport(const Sources& sources) : of_(sources) {}

  // All waits, the longest first.
  std::vector<v1::Wait> All() const;
  // How long the longest wait has lasted.
  absl::Duration Longest() const;

  // These say what one call waits for: a pull, a push that is ready, a part of the open step, an upload.
  std::string OfPull(uint32_t worker, uint64_t clock) const;
  std::string OfReady() const;
  std::string OfPart() const { return OfPull(0, of_.now.policy()->JoinClock() + 1); }
  static std::string OfUpload();

  // A call has taken effect.
  void Mark();
  // When a call last took effect.
  absl::Time marked() const { return marked_; }
  // If no call has taken effect for a while, logs which call waits for what.
  void Watch();

 private:
  static constexpr absl::Duration kTellAfter = absl::Seconds(5);
  // If a shard stands still repeatedly, as its steps take long, it reports later each time, up to this limit.
  static constexpr absl::Duration kTellAtLast = absl::Minutes(10);

  absl::Time Oldest() const;
  // The tasks of the workers whose pushes a pull of this worker at this clock lacks.
  std::vector<std::string> TasksAwaited(uint32_t worker, uint64_t clock) const;

  const Sources of_;
  absl::Time marked_;
  absl::Duration limit_ = kTellAfter;
  bool told_ = false;
};

}  // namespace weir
