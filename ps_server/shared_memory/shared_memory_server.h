#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/config/address.h"
#include "common/protocol/segment_messages.h"
#include "common/shared_memory/doorbell.h"
#include "common/shared_memory/message_ring.h"
#include "common/system/shared_memory.h"
#include "common/system/unique_fd.h"
#include "common/threads/mutex.h"
#include "ps_server/exchange/exchange_request.h"

namespace weir {

// The segments that a client has sent over its socket. Thread-safe.
class ReceivedSegments final : public ClientSegments {
 public:
  absl::StatusOr<const char*> At(uint32_t segment, uint64_t offset, uint64_t bytes) const override;
  // OK: the segment is added and has the next number.
  absl::Status Add(uint32_t segment, std::unique_ptr<const SharedSegment> memory);

 private:
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<const SharedSegment>> segments_ ABSL_GUARDED_BY(mutex_);
};

// Shares memory with the clients on this machine. Allocates memory for the shard's weights that clients can
// read in place. Receives from each client the segments that hold its gradients, and sets up rings for the
// client's messages. One thread talks to the clients (common/protocol/segment_messages.h); the data plane
// handles all other messages.
//
// A client is known from its first segment until its socket closes, which also happens when its process ends.
// Then its segments and the memory kept for it are dropped; a session that holds the segments may still read
// them. Thread-safe.
class SharedMemoryServer final : public SharedMemory {
 public:
  struct Options {
    uint32_t max_clients = 1024;
    // A client that has not sent a segment in this time is rejected.
    std::chrono::milliseconds hello_limit{5000};
    // The doorbells of the threads that read messages from rings. Null: no rings.
    std::shared_ptr<DoorbellPage> bells;
  };
  // For a server that listens on `bound`.
  static absl::StatusOr<std::unique_ptr<SharedMemoryServer>> Start(const Address& bound, Options options);
  // Drops the clients. Memory from Allocate() stays valid as long as it is held.
  ~SharedMemoryServer() override;

  // A SlabSource: memory in a segment of its own, which all clients can read. nullptr: no such memory is
  // available.
  std::shared_ptr<float> Allocate(size_t elements);
  // Nothing: `data` is not in memory from Allocate().
  std::optional<Place> Find(const void* data) const override;
  std::shared_ptr<const ClientSegments> Claim(absl::string_view token) const override;
  void KeepFor(absl::string_view token, std::vector<std::shared_ptr<const void>> memory) override;

  // As in Options.
  const std::shared_ptr<DoorbellPage>& bells() const { return options_.bells; }
  // The rings of the client that chose this token, for its data stream; each once. nullptr: there are none.
  std::unique_ptr<MessageRing> TakeRing(absl::string_view token);

 private:
  struct Client;
  struct Weights;
  // A client's data that other threads may look up.
  struct Known {
    std::shared_ptr<ReceivedSegments> segments;
    std::unique_ptr<MessageRing> ring;
    std::vector<std::shared_ptr<const void>> kept;
  };

  SharedMemoryServer(Options options, std::vector<UniqueFd> listeners, UniqueFd wake);

  // All methods below run on the thread.
  void Run();
  int PollTimeoutMs() const;
  void Accept(int listener);
  // False: drop the client.
  bool Handle(Client& client, short events);
  bool TakeMessage(Client& client);
  // Makes the rings of a client that has given its doorbells, and sends the client its end.
  absl::StatusOr<std::unique_ptr<MessageRing>> MakeRing(Client& client,
                                                        std::shared_ptr<const ReceivedSegments> segments);
  bool SendSegments(Client& client);
  void Drop(Client& client);

  const Options options_;
  const std::vector<UniqueFd> listeners_;
  const UniqueFd wake_;  // an eventfd: there is a new segment, or the thread must stop
  // Shared with the memory from Allocate(), which may live longer.
  const std::shared_ptr<Weights> weights_;
  std::vector<std::unique_ptr<Client>> clients_;  // used by the thread only
  bool accepting_ = true;                         // used by the thread only

  mutable Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<SegmentToken, Known> by_token_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace weir
