#include "common/rpc/grpc_payload.h"

#include <memory>
#include <utility>
#include <vector>

namespace weir {

absl::StatusOr<IncomingMessage> ToIncoming(const grpc::ByteBuffer& buffer) {
  // On the heap, since a small slice holds its bytes in itself: they must not move.
  const auto slices = std::make_shared<std::vector<grpc::Slice>>();
  if (const grpc::Status status = buffer.Dump(slices.get()); !status.ok()) {
    return absl::InternalError("gRPC gave a message without its bytes: " + status.error_message());
  }
  IncomingMessage message;
  for (const grpc::Slice& slice : *slices) {
    message.pieces.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  message.owner = slices;
  return message;
}

grpc::ByteBuffer ToByteBuffer(OutgoingMessage message) {
  using Owner = std::shared_ptr<const void>;
  std::vector<grpc::Slice> slices;
  slices.reserve(message.payload.size() + 1);
  if (!message.head.empty()) slices.emplace_back(message.head);
  for (OutgoingMessage::Piece& piece : message.payload) {
    slices.emplace_back(
        const_cast<char*>(piece.bytes.data()), piece.bytes.size(),
        [](void* owner) { delete static_cast<Owner*>(owner); }, new Owner(std::move(piece.owner)));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace weir
