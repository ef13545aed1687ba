#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/address.h"
#include "common/mutex.h"
#include "common/segment_messages.h"
#include "common/shared_memory.h"
#include "common/unique_fd.h"

namespace weir {

// A client's shared memory with one server on its machine: a segment of its own for gradients, in slots of a
// chunk each, others that it hands over later, and the server's segments of weights, to read. An error says
// why there is none, and chunks travel in messages then.
//
// Belongs to one connection of the data plane: made after the server answered there, named to it by token(),
// and replaced with it. Thread-safe, but for the contents of the slots.
class SharedMemoryLink {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  // Of the server under `address`. `slots` of `slot_bytes` each.
  static absl::StatusOr<std::unique_ptr<SharedMemoryLink>> Connect(const Address& address, uint32_t slots,
                                                                   uint64_t slot_bytes, Deadline deadline);

  // For v1.SharedMemoryRequest.
  std::string token() const { return std::string(token_.data(), token_.size()); }

  // Which of them the server still reads is for the user to know.
  uint32_t slots() const { return slots_; }
  char* SlotData(uint32_t slot) { return gradients_->data() + SlotOffset(slot); }
  // For v1.SharedRange.
  uint64_t SlotOffset(uint32_t slot) const { return slot * slot_bytes_; }

  // The number of this segment, which the server may be told from now on to read there. Nothing: not yet, or
  // it takes no more; asks it to, once. Never waits.
  std::optional<uint32_t> NumberOf(const std::shared_ptr<const SharedSegment>& gradients);

  // Where weights lie that the server named. Waits until `deadline` at most for a segment that is not known
  // yet. OutOfRange: not within the segment. Unavailable: no such segment came, or the server is gone. What
  // it points to stays mapped as long as this object.
  absl::StatusOr<const char*> Map(uint32_t segment, uint64_t offset, uint64_t bytes, Deadline deadline);

  // OK, or why the server has closed its end.
  absl::Status Alive();

 private:
  SharedMemoryLink(UniqueFd socket, SegmentToken token, std::shared_ptr<SharedSegment> gradients,
                   uint32_t slots, uint64_t slot_bytes);
  // Hands a segment over as the next one.
  absl::Status Give(std::shared_ptr<const SharedSegment> segment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes one message of the server. FailedPrecondition: it refuses.
  absl::Status Receive(Deadline deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const UniqueFd socket_;
  const SegmentToken token_;
  const std::shared_ptr<SharedSegment> gradients_;
  const uint64_t slot_bytes_;
  const uint32_t slots_;

  Mutex mutex_;
  // By number; the server has taken the first ones.
  std::vector<std::shared_ptr<const SharedSegment>> given_ ABSL_GUARDED_BY(mutex_);
  uint32_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint32_t, std::unique_ptr<const SharedSegment>> weights_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
