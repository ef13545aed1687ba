#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/wire_codec.h"

namespace weir {

// The bytes of a message that arrived, in pieces that stay where gRPC put them.
class ReceivedBytes {
 public:
  // Takes the buffer's slices over. Internal: gRPC could not give them.
  static absl::StatusOr<ReceivedBytes> Take(const grpc::ByteBuffer& buffer);

  absl::Span<const absl::string_view> pieces() const { return pieces_; }

 private:
  // On the heap, since a small slice holds its bytes in itself: they must not move.
  std::shared_ptr<std::vector<grpc::Slice>> slices_;
  std::vector<absl::string_view> pieces_;
};

// A slice over memory that somebody else owns. `owner` is let go when gRPC has no use for the bytes any more,
// which must not change until then; from any thread.
grpc::Slice BorrowedSlice(const void* data, size_t bytes, std::shared_ptr<const void> owner);

// A message of these bytes, in this order.
grpc::ByteBuffer MakeMessage(const std::string& head, std::vector<grpc::Slice> payload = {});

}  // namespace weir
