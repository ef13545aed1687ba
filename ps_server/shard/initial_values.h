#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "proto/parameter_server.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/shard/calls/calls.h"
#include "ps_server/shard/calls/push_arrival.h"
#include "ps_server/shard/calls/shard_members.h"
#include "ps_server/shard/staged_parts.h"
#include "ps_server/shard/versions/block_store.h"

namespace weir {

// The initial values that a shard gets from a worker (ModelSpec::uploaded()). Knows which member uploads them
// as a push, and whether the upload is whole here. Holds the uploader's call, which waits until the upload is
// whole on every shard. Until then no reader sees the values, which lie in the store.
//
// Belongs to the shard's queue.
class InitialValues {
 public:
  using Waiter = StagedParts::Waiter;

  // Await(): the shard has no values, so no worker may read or push before they have come.
  void Await() { awaited_ = true; }
  bool awaited() const { return awaited_; }

  // Whether an upload of any sender may have this header.
  static absl::Status CheckHeader(const v1::PushRequest& header);
  // The answer to the upload of a live member. nullopt: the shard takes the upload.
  std::optional<absl::StatusOr<Verdict>> Answer(const v1::Caller& caller, const ShardMembers& members) const;
  // The upload is whole here, and becomes the weights of version 0. InvalidArgument: a value is not finite.
  absl::Status Stage(PushArrival& upload, BlockStore& store);
  bool staged() const { return staged_; }
  v1::ShardReport Report() const;

  // The uploader's call waits. If this call is a repeat, the earlier call is answered.
  void Wait(Waiter waiter);
  const std::optional<Waiter>& waiter() const { return waiter_; }
  // Answers and drops the waiting call if `which` holds for it.
  template <typename Which, typename Answer>
  void EndWaiter(const Which& which, const Answer& answer) {
    if (waiter_.has_value() && which(*waiter_)) answer(*std::exchange(waiter_, std::nullopt));
  }

  // Takes from the message which member uploads, or whose upload is whole on every shard. A new uploader
  // makes the earlier upload void. Returns the verdict on the waiting call; nullopt: it still waits.
  std::optional<Verdict> Follow(const v1::SetMembership& message);

 private:
  bool awaited_ = false;
  bool staged_ = false;
  // The uploader's incarnation; 0: no member uploads.
  uint64_t uploader_ = 0;
  std::optional<Waiter> waiter_;
};

}  // namespace weir
