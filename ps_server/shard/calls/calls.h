#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/variant.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/consistency/policy.h"
#include "ps_server/shard/calls/push_arrival.h"
#include "ps_server/shard/rows/row_arrival.h"
#include "ps_server/shard/versions/version_readers.h"

// The calls of clients to a shard, and their answers.
namespace weir {

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

}  // namespace weir
