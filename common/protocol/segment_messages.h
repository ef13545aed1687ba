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
// once: the segments that are there, and each new segment when it is made. A new segment may come only after
// the first message on the wire that names it. A side that closes the socket takes back the memory that it
// gave; memory that is mapped stays readable.
//
// The messages of the data stream themselves can travel over rings in shared memory
// (common/shared_memory/message_ring.h). Then the client's doorbells come before its first segment, and that
// segment begins with the client's RingArea. A server that uses rings sends its doorbells and its own
// RingArea before the first kAccepted.

constexpr uint64_t kSegmentMagic = 0x33304d4853524557;  // "WERSHM03"

// Random, made by the client: names its segments on the stream (v1.SharedMemoryRequest), and its rings in the
// metadata of the call (kRingsEntry).
using SegmentToken = std::array<char, 16>;

// The most segments that a client may give over one connection.
constexpr uint32_t kMaxClientSegments = 16;

enum class ClientMessageKind : uint32_t { kSegment = 1, kBells = 2 };

struct ClientMessage {
  uint64_t magic;
  SegmentToken token;  // the same in each message
  uint64_t bytes;      // kSegment: its size
  uint32_t segment;    // kSegment: its number, as in v1.SharedRange: 0, 1, ...
  ClientMessageKind kind;
};

enum class ServerMessageKind : uint32_t { kAccepted = 1, kRefused = 2, kSegment = 3, kBells = 4, kRing = 5 };

struct ServerMessage {
  uint64_t magic;
  ServerMessageKind kind;
  // kSegment: the segment's number, as in v1.SharedRange, never used again. kAccepted: that of the client's
  // segment.
  uint32_t segment;
  uint64_t bytes;    // kSegment, kRing: its size; its descriptor comes with the message
  char reason[232];  // kRefused: ends with a zero
};

static_assert(std::is_trivially_copyable_v<ClientMessage> && sizeof(ClientMessage) == 40);
static_assert(std::is_trivially_copyable_v<ServerMessage> && sizeof(ServerMessage) == 256);

// The call whose messages may travel over rings, and the metadata that says so: the client's SegmentToken,
// under which the server knows the rings.
inline constexpr char kExchangeMethod[] = "weir.v1.ParameterServer/Exchange";
inline constexpr char kRingsEntry[] = "weir-rings-bin";

}  // namespace weir
