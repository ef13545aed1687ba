#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

// The bytes of the data plane's messages (proto/parameter_server.proto) without copying their tensors: each
// such message ends in a `bytes` field, which is built and read in pieces that lie where they lie. The bytes
// on the wire are those of the plain protobuf message. Pure functions; no gRPC.
namespace weir {

// The number of the `bytes` field that ends PullReply and PushRequest.
constexpr uint32_t kPayloadField = 15;
// What one message holds of a tensor at most; a push or pull is cut into such chunks.
constexpr int64_t kChunkElements = (1 << 20) / sizeof(float);

// A message that arrived, in pieces: its small fields and where its payload lies.
struct SplitMessage {
  // The serialized message without its payload field; parse it with the generated class.
  std::string head;
  // Into the pieces that were given. Together payload_bytes long; pieces may have any length and alignment.
  std::vector<absl::string_view> payload;
  uint64_t payload_bytes = 0;
};

// Splits a serialized message. Where the payload field is not the last, or comes twice (legal protobuf, which
// no serializer of ours writes), it is left in the head, for the generated class to find. InvalidArgument:
// not a protobuf message.
absl::StatusOr<SplitMessage> SplitPayload(absl::Span<const absl::string_view> pieces);

// What a PushPullReply holds: a PushReply (field 1), whose bytes are all in `message.head`, or a PullReply
// (field 2), split.
struct SplitExchangeReply {
  bool is_pull = false;
  SplitMessage message;
};
absl::StatusOr<SplitExchangeReply> SplitExchange(absl::Span<const absl::string_view> pieces);

// head + PayloadPrefix(n) + n payload bytes is the message. Empty for n = 0, as in proto3.
std::string PayloadPrefix(uint64_t payload_bytes);
// The bytes before a nested message of this size: the tag of `field` and the length.
std::string NestedPrefix(uint32_t field, uint64_t bytes);

}  // namespace weir
