#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

// Builds and reads the bytes of the data plane's messages (proto/parameter_server.proto) without copying
// their tensors: each such message ends in a `bytes` field, whose pieces stay where they lie. The bytes on
// the wire are those of the plain protobuf message. Pure functions; no gRPC.
namespace weir {

// The number of the `bytes` field that ends ExchangeRequest and ExchangeReply.
constexpr uint32_t kPayloadField = 15;
// Chunks start and end at multiples of this (or at the shard's end). A multiple of every block size.
constexpr int64_t kChunkUnit = 65536;
// The most that a chunk holds, in a message and in shared memory.
constexpr int64_t kMaxChunkBytes = 1 << 20;
constexpr int64_t kMaxSharedChunkBytes = 8 << 20;
// The elements in a chunk of this size as wire.chunk_kib says it, which counts float32 whatever the values
// are on the wire.
constexpr int64_t ChunkElements(int64_t chunk_kib) {
  return chunk_kib * 1024 / static_cast<int64_t>(sizeof(float));
}
// The least that each piece but the last holds, if a chunk in shared memory lies in several pieces.
constexpr int64_t kMinPieceBytes = 4096;

// A message that arrived, in pieces: its small fields and where its payload lies.
struct SplitMessage {
  // The serialized message without its payload field; parse it with the generated class.
  std::string head;
  // Points into the pieces that were given. Together payload_bytes long; pieces may have any length and
  // alignment.
  std::vector<absl::string_view> payload;
  uint64_t payload_bytes = 0;
};

// Splits a serialized message. If the payload field is not the last, or comes twice (legal protobuf, which no
// serializer of ours writes), it stays in the head, where the generated class finds it. InvalidArgument: not
// a protobuf message.
absl::StatusOr<SplitMessage> SplitPayload(absl::Span<const absl::string_view> pieces);

// head + PayloadPrefix(n) + n payload bytes is the message. Empty for n = 0, as in proto3.
std::string PayloadPrefix(uint64_t payload_bytes);

}  // namespace weir
