#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/protocol/message.h"
#include "proto/parameter_server.pb.h"

// One message from a client to its session, and the errors that it has whatever the session has heard before.
namespace weir {

// The memory that a shard shares with the clients on its machine, as an exchange sees it. Implementations are
// thread-safe.

// The segments that a client has given for its gradients.
class ClientSegments {
 public:
  virtual ~ClientSegments() = default;
  // The memory at that place. It stays mapped as long as this object lives. NotFound: no such segment.
  // OutOfRange: the place is not within the segment.
  virtual absl::StatusOr<const char*> At(uint32_t segment, uint64_t offset, uint64_t bytes) const = 0;
};

class SharedMemory {
 public:
  // A place in memory, for v1.SharedRange.
  struct Place {
    uint32_t segment;
    uint64_t offset;
  };
  virtual ~SharedMemory() = default;

  // Where clients find these weights of the shard. Nothing: clients cannot read that memory.
  virtual std::optional<Place> Find(const void* data) const = 0;
  // The segments of the client that chose this token; nullptr: there is no such client.
  virtual std::shared_ptr<const ClientSegments> Claim(absl::string_view token) const = 0;
  // Holds `memory`, which the client with this token may be reading, as long as the client is known.
  virtual void KeepFor(absl::string_view token, std::vector<std::shared_ptr<const void>> memory) = 0;
};

// A chunk of a gradient, or a piece of rows, where it was received.
struct ReceivedChunk {
  uint64_t first = 0;
  uint64_t bytes = 0;  // 0: there is no chunk
  bool rows = false;
  std::vector<absl::string_view> pieces;
  std::shared_ptr<const void> owner;  // owns the pieces' memory
};

struct ReceivedRequest {
  v1::ExchangeRequest request;  // without its gradient
  ReceivedChunk chunk;          // in the message
};

// Takes a message apart. An error ends the stream.
absl::StatusOr<ReceivedRequest> ReadRequest(const IncomingMessage& message);

// The errors of these two end the exchange.
//
// Checks the size of the request's chunk, and finds it if it is in shared memory. `segments`: the client's;
// null: the stream has none.
absl::Status FindChunk(const v1::ExchangeRequest& request,
                       const std::shared_ptr<const ClientSegments>& segments, ReceivedChunk* chunk);
// Checks the request that begins an exchange, but not which rows it brings and wants.
absl::Status CheckFirst(const v1::ExchangeRequest& request, const ReceivedChunk& chunk);

}  // namespace weir
