#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/system/clock.h"
#include "common/threads/serial_queue.h"
#include "proto/parameter_server.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/push_log/push_log.h"
#include "ps_server/shard/calls/calls.h"
#include "ps_server/shard/versions/block_store.h"

namespace weir {

// A push with the decision on it.
struct Decision {
  SessionId session;
  v1::PushRequest header;
  Verdict verdict;
  // If the verdict is OK, one of these is set. A streamed push is never logged.
  Slab gradient;
  std::shared_ptr<VersionBuilder> builder;
  std::shared_ptr<const PushedRows> rows;  // null: none
  // StalenessRule::Factor(). The builder has applied it already.
  double gradient_factor = 1;
  // Null: the call was answered already, because its connection ended or its worker was removed.
  PushDone done;
  absl::Time since;
  // The decision's record is on the disk.
  bool durable = false;

  uint32_t worker() const { return header.caller().worker(); }
};

// The pending decisions of a shard. With server.durability "log" a decision takes effect once its record is
// in the shard's log. At most one decision of each worker is pending, and they take effect in the order of
// this list. The coordinator's messages wait here, too, until no decision is pending, because a decision must
// still hold when it takes effect. Without a log this object stays empty.
//
// Belongs to the shard's queue.
class DecisionLog {
 public:
  // After each write `logged` is called in `queue`, the shard's, with the result.
  DecisionLog(const Clock* clock, SerialQueue* queue, std::function<void(const absl::Status&)> logged)
      : clock_(clock), queue_(queue), logged_(std::move(logged)) {}

  // An incarnation of the shard begins or ends. Results of writes of earlier incarnations have no effect.
  void Begin(std::shared_ptr<PushLog> log) { log_ = std::move(log); }
  void End();
  // False: no log is kept.
  bool kept() const { return log_ != nullptr; }

  // Whether the push may be decided on: no decision of its worker or of its batch is pending, and no message
  // waits, which would change the basis of the decision.
  bool HasTurn(const v1::PushRequest& header) const;
  bool OnItsWay(uint32_t worker) const;
  // The versions that the pending decisions will make.
  uint64_t updates() const;
  // `count`: the shard's current version, from which the record's version is counted.
  void Append(Decision decision, uint64_t count);
  // Appends a membership, which takes effect at once, because no acknowledgement depends on its record.
  void Append(const v1::Membership& membership);
  // Begins a segment for the records after the checkpoint of this step, and returns the segment's number.
  // `then` runs once the segment is durable.
  uint64_t Rotate(uint64_t step, std::function<void()> then);
  // The checkpoint of this step is complete, so records from before it are no longer needed.
  void DropBefore(uint64_t step);

  // Null: no decision is pending, or the next one is not durable yet.
  const Decision* NextDurable() const;
  Decision Take();

  // No write and no decision is pending.
  bool settled() const { return writes_ == 0 && decisions_.empty(); }
  // Defer() lets the message wait until settled(). NextDeferred() returns nullopt while it has to wait.
  void Defer(v1::ControlMessage message) { deferred_.push_back(std::move(message)); }
  bool defers() const { return !deferred_.empty(); }
  std::optional<v1::ControlMessage> NextDeferred();

  // The log cannot be written. Returns false if an earlier failure is known.
  bool Fail(const absl::Status& status);
  // After a failure: drops the decisions, since it is unknown whether their records are on disk.
  void Abandon() { decisions_.clear(); }
  bool failed() const { return failed_; }
  // The log has failed because a different process has it now.
  bool taken() const { return taken_; }
  // writes(): how many writes the disk has not answered. moved(): when the disk last answered a write, or, if
  // that is later, when the first of these writes began.
  int writes() const { return writes_; }
  absl::Time moved() const { return moved_; }

  const std::list<Decision>& decisions() const { return decisions_; }
  // Calls `answer` for the decisions for which `which` holds, unless they were answered before. These
  // decisions still take effect.
  void AnswerIf(const std::function<bool(const Decision&)>& which,
                const std::function<void(const Decision&)>& answer);

 private:
  PushLog::Done WhenLogged(std::function<void()> then);

  const Clock* const clock_;
  SerialQueue* const queue_;
  const std::function<void(const absl::Status&)> logged_;
  std::shared_ptr<PushLog> log_;
  bool failed_ = false, taken_ = false;
  int writes_ = 0;
  absl::Time moved_;
  // A list, so that its entries do not move.
  std::list<Decision> decisions_;
  std::list<v1::ControlMessage> deferred_;
  std::map<uint64_t, uint64_t> segments_;  // by the step of the checkpoint before the segment
};

}  // namespace weir
