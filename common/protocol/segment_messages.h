#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

namespace weir {

// The messages with which a client and a server on one machine hand each other shared memory, over the
// server's SOCK_SEQPACKET socket (LocalService::kSegments). Both are on the same machine, so the structs
// travel as they lie in memory.
//
// The client speaks first, and may send more later: a ClientMessage with the descriptor of each segment that
// it has for gradients. No segment may be named on the wire before the server has sent kAccepted for it.
// kRefused ends the connection. After the first kAccepted the server sends its segments of weights, each
// once: those that are there, and each new one when it is made, perhaps only after the first message on the
// wire that names it. A side that closes the socket takes back what it gave; what is mapped stays readable.

constexpr uint64_t kSegmentMagic = 0x32304d4853524557;  // "WERSHM02"

// Random, made by the client: names its segments on the gRPC stream (v1.SharedMemoryRequest).
using SegmentToken = std::array<char, 16>;

// The most segments that a client may give over one connection.
constexpr uint32_t kMaxClientSegments = 16;

struct ClientMessage {
  uint64_t magic;
  SegmentToken token;  // the same in each message
  uint64_t bytes;      // of the segment
  uint32_t segment;    // its number, as in v1.SharedRange: 0, 1, ...
  uint32_t unused;
};

enum class ServerMessageKind : uint32_t { kAccepted = 1, kRefused = 2, kSegment = 3 };

struct ServerMessage {
  uint64_t magic;
  ServerMessageKind kind;
  // kSegment: the segment's number, as in v1.SharedRange, never used again. kAccepted: that of the client's
  // segment.
  uint32_t segment;
  uint64_t bytes;    // kSegment: its size; its descriptor comes with the message
  char reason[232];  // kRefused: ends with a zero
};

static_assert(std::is_trivially_copyable_v<ClientMessage> && sizeof(ClientMessage) == 40);
static_assert(std::is_trivially_copyable_v<ServerMessage> && sizeof(ServerMessage) == 256);

}  // namespace weir
