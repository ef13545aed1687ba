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

// How a shard without initial values gets them from a worker (ModelSpec::uploaded()): which member uploads
// them as a push, whether its upload is whole here, and its call, which waits until the uploads are whole on
// every shard. The values lie in the store, where nobody sees them until then.
//
// Belongs to the shard's queue.
class InitialValues {
 public:
  using Waiter = StagedParts::Waiter;

  // The shard has no values: nobody reads or pushes.
  void Await() { awaited_ = true; }
  bool awaited() const { return awaited_; }

  // Whether an upload may have this header, whoever the sender is.
  static absl::Status CheckHeader(const v1::PushRequest& header);
  // The answer to the upload of a live member; nullopt: the shard takes the upload.
  std::optional<absl::StatusOr<Verdict>> Answer(const v1::Caller& caller, const ShardMembers& members) const;
  // The upload is whole here, and becomes the weights of version 0. InvalidArgument: a value is not finite.
  absl::Status Stage(PushArrival& upload, BlockStore& store);
  bool staged() const { return staged_; }
  v1::ShardReport Report() const;

  // The uploader's call waits. A call of which it is a repeat is answered.
  void Wait(Waiter waiter);
  const std::optional<Waiter>& waiter() const { return waiter_; }
  // Answers and drops the waiting call if `which` holds for it.
  template <typename Which, typename Answer>
  void EndWaiter(const Which& which, const Answer& answer) {
    if (waiter_.has_value() && which(*waiter_)) answer(*std::exchange(waiter_, std::nullopt));
  }

  // Who uploads, or whose upload is whole on every shard. A new uploader makes the upload of the one before
  // void. Returns the verdict on the waiting call; nullopt: it still waits.
  std::optional<Verdict> Follow(const v1::SetMembership& message);

 private:
  bool awaited_ = false;
  bool staged_ = false;
  // By incarnation; 0: nobody.
  uint64_t uploader_ = 0;
  std::optional<Waiter> waiter_;
};

}  // namespace weir
