#include "common/grpc_payload.h"

#include <utility>

namespace weir {

absl::StatusOr<ReceivedBytes> ReceivedBytes::Take(const grpc::ByteBuffer& buffer) {
  ReceivedBytes out;
  out.slices_ = std::make_shared<std::vector<grpc::Slice>>();
  if (const grpc::Status status = buffer.Dump(out.slices_.get()); !status.ok()) {
    return absl::InternalError("gRPC gave a message without its bytes: " + status.error_message());
  }
  for (const grpc::Slice& slice : *out.slices_) {
    out.pieces_.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return out;
}

grpc::Slice BorrowedSlice(const void* data, size_t bytes, std::shared_ptr<const void> owner) {
  auto* const held = new std::shared_ptr<const void>(std::move(owner));
  return grpc::Slice(
      const_cast<void*>(data), bytes,
      [](void* user_data) { delete static_cast<std::shared_ptr<const void>*>(user_data); }, held);
}

grpc::ByteBuffer MakeMessage(const std::string& head, std::vector<grpc::Slice> payload) {
  std::vector<grpc::Slice> slices;
  slices.reserve(payload.size() + 1);
  if (!head.empty()) slices.emplace_back(head);
  for (grpc::Slice& slice : payload) slices.push_back(std::move(slice));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace weir
