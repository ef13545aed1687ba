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
#include "common/sync/mutex.h"
#include "common/system/shared_memory.h"
#include "common/system/unique_fd.h"
#include "ps_server/exchange/shared_memory.h"

namespace weir {

// The segments that a client has sent over its socket. Thread-safe.
class ReceivedSegments final : public ClientSegments {
 public:
  absl::StatusOr<const char*> At(uint32_t segment, uint64_t offset, uint64_t bytes) const override;
  // OK: it has the next number now.
  absl::Status Add(uint32_t segment, std::unique_ptr<const SharedSegment> memory);

 private:
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<const SharedSegment>> segments_ ABSL_GUARDED_BY(mutex_);
};

// Shares memory with the clients on this machine: gives the shard's weights memory that they can read in
// place, and takes from each client the segments that hold its gradients. One thread speaks with them (see
// common/protocol/segment_messages.h); what they say on the data plane stays there.
//
// A client is known from its first segment until its socket closes, which the end of its process does too.
// Then its segments are dropped, with what was kept for it; a session that holds them still may read them.
// Thread-safe.
class SharedMemoryServer final : public SharedMemory {
 public:
  struct Options {
    uint32_t max_clients = 1024;
    // A client that has not given a segment by then is turned away.
    std::chrono::milliseconds hello_limit{5000};
  };
  // For a server that listens on `bound`.
  static absl::StatusOr<std::unique_ptr<SharedMemoryServer>> Start(const Address& bound, Options options);
  // Drops the clients. Memory that Allocate() gave stays as long as it is held.
  ~SharedMemoryServer() override;

  // A SlabSource: memory of a segment of its own, which all clients get to read. nullptr: it cannot be had.
  std::shared_ptr<float> Allocate(size_t elements);
  // Nothing: not in memory that Allocate() gave.
  std::optional<Place> Find(const void* data) const override;
  std::shared_ptr<const ClientSegments> Claim(absl::string_view token) const override;
  void KeepFor(absl::string_view token, std::vector<std::shared_ptr<const void>> memory) override;

 private:
  struct Client;
  struct Weights;
  // What others may ask for of a client.
  struct Known {
    std::shared_ptr<ReceivedSegments> segments;
    std::vector<std::shared_ptr<const void>> kept;
  };

  SharedMemoryServer(Options options, std::vector<UniqueFd> listeners, UniqueFd wake);

  // All below run on the thread.
  void Run();
  int PollTimeoutMs() const;
  void Accept(int listener);
  // False: the client is to be dropped.
  bool Handle(Client& client, short events);
  bool TakeSegment(Client& client);
  bool SendSegments(Client& client);
  void Drop(Client& client);

  const Options options_;
  const std::vector<UniqueFd> listeners_;
  const UniqueFd wake_;  // an eventfd: there is a new segment, or the end
  // Shared with what Allocate() gave, which may live longer.
  const std::shared_ptr<Weights> weights_;
  std::vector<std::unique_ptr<Client>> clients_;  // of the thread
  bool accepting_ = true;                         // of the thread

  mutable Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<SegmentToken, Known> by_token_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace weir
