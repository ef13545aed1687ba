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
#include "client/exchange/shard_channel.h"
#include "common/config/address.h"
#include "common/protocol/segment_messages.h"
#include "common/shared_memory/doorbell.h"
#include "common/shared_memory/message_ring.h"
#include "common/system/shared_memory.h"
#include "common/system/unique_fd.h"
#include "common/threads/mutex.h"

namespace weir {

// A client's shared memory with one server on its machine. It consists of the client's segment for gradients,
// in slots of one chunk each; segments that the client hands over later; the server's segments of weights,
// which the client reads; and rings for messages. An error of Connect() says why there is no such memory;
// chunks then travel in messages.
//
// Belongs to one connection of the data plane: it is made after the server has answered there, is named to
// the server by token(), and is replaced with the connection. Thread-safe, except for the contents of the
// slots.
class SharedMemoryLink final : public ShardMemory {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  // Shares memory with the server at `address`: `slots` of `slot_bytes` each. With `bells`, the doorbells of
  // the threads that will read messages, also asks for rings.
  static absl::StatusOr<std::unique_ptr<SharedMemoryLink>> Connect(
      const Address& address, uint32_t slots, uint64_t slot_bytes, Deadline deadline,
      const std::shared_ptr<DoorbellPage>& bells = nullptr);

  // The rings on which the data stream's messages travel, once. Null: the server has none to give, and
  // messages travel over gRPC.
  std::unique_ptr<MessageRing> TakeRing();

  std::string token() const override { return std::string(token_.data(), token_.size()); }

  uint32_t slots() const override { return slots_; }
  char* SlotData(uint32_t slot) override { return gradients_->data() + SlotOffset(slot); }
  // The first segment begins with this end's RingArea.
  uint64_t SlotOffset(uint32_t slot) const override { return kRingAreaPages + slot * slot_bytes_; }

  std::optional<uint32_t> NumberOf(const std::shared_ptr<const SharedSegment>& gradients) override;

  absl::StatusOr<const char*> Map(uint32_t segment, uint64_t offset, uint64_t bytes) override;

 private:
  SharedMemoryLink(UniqueFd socket, SegmentToken token, std::shared_ptr<SharedSegment> gradients,
                   uint32_t slots, uint64_t slot_bytes);
  absl::Status Send(ClientMessageKind kind, uint32_t segment, uint64_t bytes, int descriptor);
  // Hands the server the next segment.
  absl::Status Give(std::shared_ptr<const SharedSegment> segment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes one message from the server. FailedPrecondition: the server refuses. Unavailable: none came in
  // time. Aborted: the server is gone.
  absl::Status Receive(Deadline deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The server's rings and doorbells, as they come.
  struct ServerRing {
    std::shared_ptr<const SharedSegment> segment;
    std::shared_ptr<DoorbellPage> bells;
  };

  const UniqueFd socket_;
  const SegmentToken token_;
  const std::shared_ptr<SharedSegment> gradients_;
  const uint64_t slot_bytes_;
  const uint32_t slots_;

  Mutex mutex_;
  // By number. The server has taken the first taken_ of them.
  std::vector<std::shared_ptr<const SharedSegment>> given_ ABSL_GUARDED_BY(mutex_);
  uint32_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint32_t, std::unique_ptr<const SharedSegment>> weights_ ABSL_GUARDED_BY(mutex_);
  ServerRing ring_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
