#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/variant.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/consistency/policy.h"
#include "ps_server/shard/calls/push_arrival.h"
#include "ps_server/shard/rows/row_arrival.h"
#include "ps_server/shard/versions/version_readers.h"

// The calls of clients to a shard, and their answers.
namespace weir {

class ShardMembers;

// A connection of one client. Not 0.
using SessionId = uint64_t;

inline PushKey KeyOf(const v1::PushRequest& header) {
  return {header.caller().worker(), header.clock(), header.part()};
}

// The outcome of a push. OK: it is applied. REFUSED, DUPLICATE_BATCH, STALE_VERSION: it is not applied, but
// its clock is complete.
struct Verdict {
  v1::Outcome outcome = v1::OK;
  std::string reason;
  // REFUSED by the StalenessRule: the push's version staleness. Otherwise 0.
  uint64_t staleness = 0;
};

struct PushAnswer {
  v1::PushReply reply;
  // The answer to the worker's pull at the next clock, if the push was streamed and made that version.
  absl::optional<v1::PullReply> made;
  // The weights of that answer.
  std::shared_ptr<const LentVersion> version = nullptr;
};
// How to receive a push, or its answer if the answer needs no gradient (a repeat, a fenced caller).
using PushBegin = absl::variant<std::unique_ptr<PushArrival>, PushAnswer>;

struct PullAnswer {
  v1::PullReply header;
  // The weights to send; null: none follow. Once the version is revoked, its unsent weights are not sent, and
  // the pull ends with Unavailable.
  std::shared_ptr<const LentVersion> version = nullptr;
  // The rows that the pull asked for, of the version of `version`; null: none follow.
  std::shared_ptr<const ReadRows> rows = nullptr;
};

// Gives a push its whole gradient. Runs within the shard's turn.
using PushFill = std::function<absl::Status(PushArrival&)>;

// The answer to a call, given once, on the thread that made it possible. The callback must not block.
using BeginDone = std::function<void(absl::StatusOr<PushBegin>)>;
using PushDone = std::function<void(absl::StatusOr<PushAnswer>)>;
using PullDone = std::function<void(absl::StatusOr<PullAnswer>)>;
using ReadRowsDone = std::function<void(absl::StatusOr<v1::ReadRowsReply>)>;

// For a push whose answer needs no gradient.
inline PushDone AsPush(BeginDone done) {
  return [done = std::move(done)](absl::StatusOr<PushAnswer> answer) {
    done(answer.ok() ? absl::StatusOr<PushBegin>(*std::move(answer)) : answer.status());
  };
}

// Answers and drops those calls of a list for which `which` holds.
template <typename Calls, typename Which, typename Answer>
void EndIf(Calls& calls, const Which& which, const Answer& answer) {
  for (auto it = calls.begin(); it != calls.end();) {
    if (!which(*it)) {
      ++it;
      continue;
    }
    answer(*it);
    it = calls.erase(it);
  }
}

// Waiting calls in the order of their turns, and by worker, so that an event of one worker need not visit the
// calls of all. `Call` has worker() and a unique `turn`.
template <typename Call>
class CallList {
 public:
  void Add(Call call) {
    by_worker_.emplace(call.worker(), call.turn);
    const uint64_t turn = call.turn;
    by_turn_.emplace(turn, std::move(call));
  }

  bool empty() const { return by_turn_.empty(); }
  size_t size() const { return by_turn_.size(); }
  size_t SizeOf(uint32_t worker) const { return TurnsOf(worker).size(); }
  // The call whose turn is next. The list is not empty.
  const Call& front() const { return by_turn_.begin()->second; }
  const std::map<uint64_t, Call>& by_turn() const { return by_turn_; }
  std::vector<uint64_t> Turns() const {
    std::vector<uint64_t> turns;
    turns.reserve(by_turn_.size());
    for (const auto& [turn, call] : by_turn_) turns.push_back(turn);
    return turns;
  }
  std::vector<uint64_t> TurnsOf(uint32_t worker) const {
    std::vector<uint64_t> turns;
    for (auto at = by_worker_.lower_bound({worker, 0}); at != by_worker_.end() && at->first == worker; ++at) {
      turns.push_back(at->second);
    }
    return turns;
  }

  // Null: no call has this turn. Valid until the call is taken.
  const Call* Find(uint64_t turn) const {
    const auto at = by_turn_.find(turn);
    return at == by_turn_.end() ? nullptr : &at->second;
  }
  // Takes a call off the list, which has a call of this turn.
  Call Take(uint64_t turn) {
    const auto at = by_turn_.find(turn);
    Call call = std::move(at->second);
    by_turn_.erase(at);
    by_worker_.erase({call.worker(), turn});
    return call;
  }

 private:
  std::map<uint64_t, Call> by_turn_;
  // Workers and turns.
  std::set<std::pair<uint32_t, uint64_t>> by_worker_;
};

template <typename Call, typename Which, typename Answer>
void EndIf(CallList<Call>& calls, const Which& which, const Answer& answer) {
  for (const uint64_t turn : calls.Turns()) {
    if (which(*calls.Find(turn))) answer(calls.Take(turn));
  }
}

// A push that waits for its turn to begin.
struct HeldPush {
  SessionId session;
  v1::PushRequest header;
  BeginDone done;
  absl::Time since;
  // As Shard::Begin().
  PushFill fill;
  // The push's turn in its list; 0: it was in none yet. If the push has to wait again, it keeps its turn.
  uint64_t turn = 0;

  uint32_t worker() const { return header.caller().worker(); }
};

// A push that has arrived whole and waits for memory. With the log it waits for memory of rows, or for other
// pushes whose records are being written.
struct ReadyPush {
  SessionId session;
  std::unique_ptr<PushArrival> arrival;
  PushDone done;
  absl::Time since;

  uint32_t worker() const { return arrival->header().caller().worker(); }
};

// A pull that waits for pushes.
struct ParkedPull {
  SessionId session;
  v1::PullRequest request;
  PullDone done;
  absl::Time since;
  std::shared_ptr<const RowKeys> rows;
  // As HeldPush::turn.
  uint64_t turn = 0;

  uint32_t worker() const { return request.caller().worker(); }
};

// The calls that wait on a shard. They use no thread. Calls of each kind are in the order of their arrival.
//
// Belongs to the shard's queue.
class WaitingCalls {
 public:
  // At most this many calls of one worker wait at a time. The limit is above the exchanges of one stream,
  // because calls of a broken stream may wait beside the calls of the next stream.
  static constexpr size_t kMaxOfWorker = 2048;

  // ResourceExhausted: kMaxOfWorker calls of the worker wait.
  absl::Status CheckRoom(uint32_t worker, const ShardMembers& members) const;

  uint64_t NewTurn() { return ++last_turn_; }

  // How to answer the calls that are ended.
  struct Answers {
    std::function<void(const HeldPush&)> held;
    std::function<void(const ReadyPush&)> ready;
    std::function<void(const ParkedPull&)> parked;
  };
  // Answers and drops the calls for which `which` holds.
  template <typename Which>
  void End(const Which& which, const Answers& answers) {
    EndIf(parked, which, answers.parked);
    EndIf(held, which, answers.held);
    EndIf(behind_stream, which, answers.held);
    EndIf(ready, which, answers.ready);
  }

  // When the longest wait began. InfiniteFuture: no call waits.
  absl::Time oldest() const;

  // `behind_stream`: held until the push that is streaming in has ended or stands still.
  CallList<HeldPush> held, behind_stream;
  std::list<ReadyPush> ready;
  CallList<ParkedPull> parked;

  // Which calls the last changes may let continue: all calls, all held pushes, or the calls of the workers
  // whose clocks have changed. Most pushes change only a clock, while a call of every worker may wait.
  struct Changes {
    bool all = false, held = false;
    std::vector<uint32_t> moved;
  };
  Changes changes;
  // Calls look() now; if look() is running, calls it once more afterwards. So the effects of a change do not
  // run inside it, and the stack stays flat however many calls wait.
  template <typename Look>
  void Resume(const Look& look) {
    look_again_ = true;
    if (std::exchange(looking_, true)) return;
    while (std::exchange(look_again_, false)) look();
    looking_ = false;
  }

 private:
  uint64_t last_turn_ = 0;
  bool looking_ = false, look_again_ = false;
};

}  // namespace weir
