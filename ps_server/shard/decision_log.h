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
#include "ps_server/shard/rows/shard_tables.h"
#include "ps_server/shard/staged_parts.h"
#include "ps_server/shard/versions/version_builder.h"

namespace weir {

// A push that was decided on.
struct Decision {
  SessionId session;
  v1::PushRequest header;
  Verdict verdict;
  // If the verdict is OK, one of these is set. A streamed push is never logged.
  Slab gradient;
  std::shared_ptr<VersionBuilder> builder;
  std::shared_ptr<const PushedRows> rows;  // null: none
  // Null: the call was answered before (its connection ended, its worker was removed).
  PushDone done;
  absl::Time since;
  // Its record is on the disk.
  bool durable = false;

  uint32_t worker() const { return header.caller().worker(); }
};

// The decisions of a shard that are pending: they take effect once their records are in its log
// (server.durability "log"). At most one of each worker, in the order in which they take effect. Also the
// coordinator's messages, which wait until no decision is pending, because a decision must still hold when it
// takes effect. Without a log this object stays empty.
//
// Belongs to the shard's queue.
class DecisionLog {
 public:
  // `queue`: the shard's. `logged` is called there after each write, with its result.
  DecisionLog(const Clock* clock, SerialQueue* queue, std::function<void(const absl::Status&)> logged)
      : clock_(clock), queue_(queue), logged_(std::move(logged)) {}

  // An incarnation of the shard begins and ends. The result of an earlier incarnation's write has no effect.
  void Begin(std::shared_ptr<PushLog> log) { log_ = std::move(log); }
  void End();
  // False: no log is kept.
  bool kept() const { return log_ != nullptr; }

  // The push may be decided on: no decision of its worker or of its batch is pending, and no message, which
  // would change the basis of the decision.
  bool HasTurn(const v1::PushRequest& header) const;
  bool OnItsWay(uint32_t worker) const;
  // `count` is the shard's current version; the record's version is counted from it.
  void Append(Decision decision, uint64_t count);
  // No acknowledgement depends on a membership's record, so a membership takes effect at once.
  void Append(const v1::Membership& membership);
  // Later records follow the checkpoint of this step. `then` runs once the new segment is durable. Returns
  // the number of the segment.
  uint64_t Rotate(uint64_t step, std::function<void()> then);
  // The checkpoint of this step is complete; records from before it are not needed any more.
  void DropBefore(uint64_t step);

  // Null: there is no next decision, or it is not durable yet.
  const Decision* NextDurable() const;
  Decision Take();

  // No write and no decision is pending.
  bool settled() const { return writes_ == 0 && decisions_.empty(); }
  // The message waits until settled(). NextDeferred() returns nullopt while it has to wait.
  void Defer(v1::ControlMessage message) { deferred_.push_back(std::move(message)); }
  bool defers() const { return !deferred_.empty(); }
  std::optional<v1::ControlMessage> NextDeferred();

  // The log cannot be written. False: a failure is known already.
  bool Fail(const absl::Status& status);
  // After a failure: it is unknown whether the records are on disk, and none of the decisions takes effect.
  void Abandon() { decisions_.clear(); }
  bool failed() const { return failed_; }
  // Another process has the log now.
  bool taken() const { return taken_; }
  // Writes that the disk has not answered, and when it last answered one (or when the first of them began).
  int writes() const { return writes_; }
  absl::Time moved() const { return moved_; }

  const std::list<Decision>& decisions() const { return decisions_; }
  // Answers the decisions for which `which` holds and that have no answer yet. They still take effect.
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
  // A list, because its entries do not move.
  std::list<Decision> decisions_;
  std::list<v1::ControlMessage> deferred_;
  std::map<uint64_t, uint64_t> segments_;  // by the step of the checkpoint before the segment
};

}  // namespace weir
