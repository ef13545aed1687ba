#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

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

}  // namespace weir
