#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/system/clock.h"
#include "proto/parameter_server.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/push_log/push_log.h"
#include "ps_server/shard/calls.h"
#include "ps_server/shard/staged_parts.h"
#include "ps_server/shard/version_builder.h"

namespace weir {

// A push that was decided on.
struct Decision {
  SessionId session;
  v1::PushRequest header;
  Verdict verdict;
  // OK: one of these. A streamed push is never logged.
  Slab gradient;
  std::shared_ptr<VersionBuilder> builder;
  // Null: it was answered otherwise (its connection ended, its worker was taken out).
  PushDone done;
  absl::Time since;
  // Its record is on the disk.
  bool durable = false;

  uint32_t worker() const { return header.caller().worker(); }
};

// The decisions of a shard that are on their way to its log (server.durability "log"), at most one of each
// worker, in the order in which they take effect; and the coordinator's messages that wait until none is on
// its way, since a decision has to hold when it takes effect. Without a log it stays empty.
//
// Belongs to the shard's queue.
class DecisionLog {
 public:
  // `post` runs a function in the shard's queue; there `logged` is called after each write, with how it went.
  DecisionLog(const Clock* clock, std::function<void(std::function<void()>)> post,
              std::function<void(const absl::Status&)> logged);

  // An incarnation of the shard begins and ends. What a write of an earlier one still brings has no effect.
  void Begin(std::shared_ptr<PushLog> log) { log_ = std::move(log); }
  void End();
  // False: no log is kept.
  bool kept() const { return log_ != nullptr; }

  // Nothing on its way stands between this push and its decision: no other push of its worker, or of its
  // batch, and no message, which would change what the decision is based on.
  bool HasTurn(const v1::PushRequest& header) const;
  bool OnItsWay(uint32_t worker) const;
  // `version`: the one that the push makes when it takes effect, counted from `count`, the shard's now.
  void Append(Decision decision, uint64_t count);
  // Nothing is acknowledged with a membership, so it takes effect at once.
  void Append(const v1::Membership& membership);
  // What is appended from now on follows the checkpoint of this step. `then` runs once that is durable.
  // Returns the number of the log's segment.
  uint64_t Rotate(uint64_t step, std::function<void()> then);
  // The checkpoint of this step is complete; what comes before it is not needed.
  void DropBefore(uint64_t step);

  // Null: the next decision is not durable yet, or there is none.
  const Decision* NextDurable() const;
  Decision Take();

  // Nothing is on its way.
  bool settled() const { return writes_ == 0 && decisions_.empty(); }
  // A message waits for that. Next: nullopt while it has to.
  void Defer(v1::ControlMessage message) { deferred_.push_back(std::move(message)); }
  bool defers() const { return !deferred_.empty(); }
  std::optional<v1::ControlMessage> NextDeferred();

  // The log cannot be written. False: that is known.
  bool Fail(const absl::Status& status);
  // After that: whether their records are on the disk is open, and none takes effect.
  void Abandon() { decisions_.clear(); }
  bool failed() const { return failed_; }
  // Another process has the log now.
  bool taken() const { return taken_; }
  // The disk owes answers, and has given none since then.
  int writes() const { return writes_; }
  absl::Time moved() const { return moved_; }

  const std::list<Decision>& decisions() const { return decisions_; }
  // Answers those decisions for which `which` holds, and that have no answer yet; they take effect all the
  // same.
  void AnswerIf(const std::function<bool(const Decision&)>& which,
                const std::function<void(const Decision&)>& answer);

 private:
  PushLog::Done WhenLogged(std::function<void()> then);

  const Clock* const clock_;
  const std::function<void(std::function<void()>)> post_;
  const std::function<void(const absl::Status&)> logged_;
  std::shared_ptr<PushLog> log_;
  bool failed_ = false, taken_ = false;
  int writes_ = 0;
  absl::Time moved_;
  // A list: its entries do not move.
  std::list<Decision> decisions_;
  std::list<v1::ControlMessage> deferred_;
  std::map<uint64_t, uint64_t> segments_;  // by the step of the checkpoint before it
};

}  // namespace weir
