#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/variant.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/shard/push_arrival.h"
#include "ps_server/shard/version_readers.h"

// The calls of clients to a shard, and their answers.
namespace weir {

// The calls of one client's connection. Not 0.
using SessionId = uint64_t;

// How a push is to be received; or its answer, where that needs no gradient (a repeat, a fenced caller).
using PushBegin = absl::variant<std::unique_ptr<PushArrival>, v1::PushReply>;

struct PushAnswer {
  v1::PushReply reply;
  // If the push was streamed, and the pull of its worker at the next clock is answered by the very version
  // that it made: that answer.
  absl::optional<v1::PullReply> made;
};

struct PullAnswer {
  v1::PullReply header;
  // What is to be sent; null if no weights follow. Once it is revoked the rest is not sent, and the pull ends
  // with Unavailable.
  std::shared_ptr<const LentVersion> version;
};

// The answer to a call, given once; on the thread of whoever made it possible, which it must not block.
using BeginDone = std::function<void(absl::StatusOr<PushBegin>)>;
using PushDone = std::function<void(absl::StatusOr<PushAnswer>)>;
using PullDone = std::function<void(absl::StatusOr<PullAnswer>)>;

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
