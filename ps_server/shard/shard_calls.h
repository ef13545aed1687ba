#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/protocol/mode_traits.h"
#include "common/system/clock.h"
#include "proto/job_config.pb.h"
#include "proto/parameter_server.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/shard/calls/calls.h"
#include "ps_server/shard/calls/push_arrival.h"
#include "ps_server/shard/decision_log.h"
#include "ps_server/shard/incarnation.h"
#include "ps_server/shard/initial_values.h"
#include "ps_server/shard/shard_answers.h"
#include "ps_server/shard/update_room.h"
#include "ps_server/shard/wait_report.h"

namespace weir {

// The pushes and pulls of a shard: decides when and how a push may arrive, lets the push take effect, and
// parks the calls that have to wait. A message of ps:0 may end calls, or let calls continue (Wake()).
//
// Belongs to the shard's queue, except where a method says so.
class ShardCalls {
 public:
  // The shard's other parts, which outlive this object. `over`: as Shard::over_.
  struct Parts {
    const v1::JobConfig& config;
    const Clock& clock;
    Incarnation& now;
    UpdateRoom& room;
    DecisionLog& log;
    InitialValues& initial;
    ShardAnswers& answers;
    const std::optional<absl::Status>& over;
    ShardCounters& counters;
  };
  struct Options {
    // As Shard::Options.
    uint64_t chunk_unit = 0;
    std::function<void(absl::Duration)> nudge;
    std::function<void()> on_short;
    // These let the shard send a report, fail, handle a message that has waited for the log, and continue a
    // commit that has waited for memory.
    std::function<void(v1::ShardReport)> report;
    std::function<void(const absl::Status&)> fail;
    std::function<void(const v1::ControlMessage&)> control;
    std::function<void()> continue_commit;
  };
  ShardCalls(const Parts& parts, Options options);

  // The caller has checked that the call is for this shard.
  void Begin(HeldPush push);
  // The push has arrived whole, or has `waited` for memory, and its turn has come.
  void Push(ReadyPush push, bool waited = false);
  void Pull(ParkedPull pull);
  void End(SessionId session);
  // Ends waits whose deadlines have passed.
  void Tick();
  // As Shard::AnswersAfter().
  bool AnswersAfter(const v1::PushRequest& push) const;
  // Counts the bytes of a push that has come whole. Any thread.
  void CountPushed(const v1::PushRequest& header);

  // Wake() continues the calls that any change may let continue. WakeMoved() continues only the calls that
  // the changes since the last look may let continue.
  void Wake();
  void WakeMoved();

  // Ends the waiting calls of a worker that is no longer a member.
  void FailWorker(uint32_t worker, const Verdict& verdict);
  // Ends the waiting calls of all workers, and the calls that wait for the open step's commit.
  void FailAll(const Verdict& verdict);
  // The incarnation ends: FailAll(), and forgets the pushes that are arriving.
  void Drop(const Verdict& verdict);

  WaitReport& waits() { return waits_; }

 private:
  // Why the push cannot begin or, for an upload of initial values, cannot end. nullopt: the push can.
  std::optional<absl::StatusOr<Verdict>> Refuse(const v1::PushRequest& header) const;
  // Whether the push waits for the streamed push (PushArrivals::WaitForStream()). If so, asks for a Tick().
  bool WaitsForStream(const v1::PushRequest& header);
  // Begins an arrival. nullptr: two copies of the push are arriving already.
  std::unique_ptr<PushArrival> Arrive(SessionId session, v1::PushRequest header);
  void Hold(CallList<HeldPush>& among, HeldPush push);
  // The upload of initial values is whole.
  void HandleUpload(SessionId session, std::unique_ptr<PushArrival> arrival, PushDone done);
  // Decides on a push that is whole and has passed the checks.
  void FinishPush(ReadyPush push, PushDecision decision, Verdict verdict, bool waited);
  // Whether the push can be decided on now: memory is there, and no pending decision is in the way.
  bool CanDecide(const v1::PushRequest& header);
  void Decide(Decision decision);
  void TakeEffect(const Decision& decision);
  // Applies the decisions that are durable, then handles the messages that waited for them.
  void ApplyDurable();
  // sync. As Incarnation::Stage().
  void StagePush(const v1::PushRequest& header, Slab gradient, PushedRows rows, std::string refusal,
                 SessionId session, PushDone done);
  void RepeatPush(SessionId session, const v1::PushRequest& header, PushDone done);
  // Whether calls or a commit wait for memory that readers hold.
  bool ShortOfMemory() const;
  void ResumeWaiting();
  void FailWaiting(const std::function<bool(uint32_t worker)>& which, const Verdict& verdict);

  const Parts of_;
  const ModeTraits& mode_;
  const Options options_;
  PushArrivals arrivals_;
  WaitingCalls calls_;
  WaitReport waits_;
  // ConsistencyPolicy::JoinClock() when calls were last resumed.
  uint64_t resumed_at_ = 0;
};

}  // namespace weir
