#include "common/rpc/grpc_convert.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/bounded.h"
#include "common/protocol/job_failure.h"

namespace weir {
namespace {

// All header fields of an answer may have 8 KiB; a peer's own words may be in the message.
constexpr size_t kMostBytes = 4000;

}  // namespace

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

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), Shortened(status.message(), kMostBytes),
                      DetailsOf(status));
}

absl::Status FromGrpc(const grpc::Status& status, absl::string_view call) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  std::string text = status.error_message();
  if (text.empty()) {
    text = absl::StrCat(
        call, " ended with ", absl::StatusCodeToString(code), " (", status.error_code(), "), and no message",
        code == absl::StatusCode::kUnimplemented
            ? ": what listens there has no such call, so it is another server, or another program"
            : "");
  }
  return FromDetails(code, text, status.error_details());
}

}  // namespace weir
