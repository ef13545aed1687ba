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

// The number of the `bytes` field that ends ExchangeRequest and ExchangeReply.
constexpr uint32_t kPayloadField = 15;
// Chunks start and end at multiples of it (or at the shard's end). A multiple of every block size.
constexpr int64_t kChunkUnit = 65536;
// What a chunk holds at most, in a message and in shared memory.
constexpr int64_t kMaxChunkBytes = 1 << 20;
constexpr int64_t kMaxSharedChunkBytes = 8 << 20;
// What each piece of a chunk that lies in several in shared memory holds at least, but for the last.
constexpr int64_t kMinPieceBytes = 4096;

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

// head + PayloadPrefix(n) + n payload bytes is the message. Empty for n = 0, as in proto3.
std::string PayloadPrefix(uint64_t payload_bytes);

}  // namespace weir
