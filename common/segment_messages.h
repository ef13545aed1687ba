#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

namespace weir {

// What a client and a server on one machine say to hand each other shared memory, over the server's
// SOCK_SEQPACKET socket (LocalService::kSegments). Both are of this machine, so the structs travel as they
// lie in memory.
//
// The client speaks first and once: ClientHello, with its gradient segment's descriptor. The server answers
// kAccepted or kRefused, and after kAccepted sends its segments of weights, each once: those that are there,
// and each new one when it is made, perhaps only after the first message on the wire that names it. Whoever
// closes the socket takes back what it gave; what is mapped stays readable.

constexpr uint64_t kSegmentMagic = 0x31304d4853524557;  // "WERSHM01"

// Random, the client's: names its segment on the gRPC stream (v1.SharedMemoryRequest).
using SegmentToken = std::array<char, 16>;

struct ClientHello {
  uint64_t magic;
  SegmentToken token;
  uint64_t bytes;  // of the segment
};

enum class ServerMessageKind : uint32_t { kAccepted = 1, kRefused = 2, kSegment = 3 };

struct ServerMessage {
  uint64_t magic;
  ServerMessageKind kind;
  uint32_t segment;  // kSegment: its number, as in v1.SharedRange, never used again
  uint64_t bytes;    // kSegment: of it; its descriptor comes with the message
  char reason[232];  // kRefused: ends with a zero
};

static_assert(std::is_trivially_copyable_v<ClientHello> && sizeof(ClientHello) == 32);
static_assert(std::is_trivially_copyable_v<ServerMessage> && sizeof(ServerMessage) == 256);

}  // namespace weir
