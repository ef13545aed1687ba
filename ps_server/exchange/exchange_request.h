#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/protocol/message.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/exchange/shared_memory.h"

// One message from a client to its session, and the errors that it has whatever the session has heard before.
namespace weir {

// A chunk of a gradient, or a piece of rows, where it was received.
struct ReceivedChunk {
  uint64_t first = 0;
  uint64_t bytes = 0;  // 0: there is no chunk
  bool rows = false;
  std::vector<absl::string_view> pieces;
  std::shared_ptr<const void> owner;  // owns the pieces' memory
};

struct ReceivedRequest {
  v1::ExchangeRequest request;  // without its gradient
  ReceivedChunk chunk;          // in the message
};

// Takes a message apart. An error ends the stream.
absl::StatusOr<ReceivedRequest> ReadRequest(const IncomingMessage& message);

// The errors of these two end the exchange.
//
// Checks the size of the request's chunk, and finds it if it is in shared memory. `segments`: the client's;
// null: the stream has none.
absl::Status FindChunk(const v1::ExchangeRequest& request,
                       const std::shared_ptr<const ClientSegments>& segments, ReceivedChunk* chunk);
// Checks the request that begins an exchange, but not which rows it brings and wants.
absl::Status CheckFirst(const v1::ExchangeRequest& request, const ReceivedChunk& chunk);

}  // namespace weir
