#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "ps_server/shard/staged_parts.h"

namespace weir {

// How a shard without initial values gets them from a worker (ModelSpec::uploaded()): which member uploads,
// whether its upload is whole here, and its call, which waits until the uploads are whole on every shard. The
// values themselves lie in the store.
//
// Belongs to the shard's queue.
class InitialValues {
 public:
  using Waiter = StagedParts::Waiter;

  // The shard has no values: nobody reads or pushes.
  void Await() { awaited_ = true; }
  bool awaited() const { return awaited_; }

  // Members are named by their incarnations; 0: none. A new uploader makes the upload of the one before void;
  // returns the call of that one.
  uint64_t uploader() const { return uploader_; }
  std::optional<Waiter> SetUploader(uint64_t incarnation) {
    uploader_ = incarnation;
    staged_ = false;
    return std::exchange(waiter_, std::nullopt);
  }

  // The upload is whole here.
  void Stage() { staged_ = true; }
  bool staged() const { return staged_; }
  // The uploader's call waits. Returns the one before, of which it is a repeat.
  std::optional<Waiter> Wait(Waiter waiter) { return std::exchange(waiter_, std::move(waiter)); }
  const std::optional<Waiter>& waiter() const { return waiter_; }
  // Answers and drops the waiting call if `which` holds for it.
  template <typename Which, typename Answer>
  void EndWaiter(const Which& which, const Answer& answer) {
    if (waiter_.has_value() && which(*waiter_)) answer(*std::exchange(waiter_, std::nullopt));
  }

  // What the uploader has staged is version 0. Returns its call.
  std::optional<Waiter> Settle() {
    awaited_ = false;
    return std::exchange(waiter_, std::nullopt);
  }

 private:
  bool awaited_ = false;
  uint64_t uploader_ = 0;
  bool staged_ = false;
  std::optional<Waiter> waiter_;
};

}  // namespace weir
