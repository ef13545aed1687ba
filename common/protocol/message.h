#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace weir {

// Messages of the data plane (proto/parameter_server.proto) as an exchange makes and takes them. A channel,
// gRPC's or the simulated network's, carries their bytes.

// A message on its way out: the bytes of `head`, then those of `payload`. The payload stays where it lies,
// unchanged, until its owner is released, which the channel does once it has sent or copied the bytes.
struct OutgoingMessage {
  struct Piece {
    absl::string_view bytes;
    std::shared_ptr<const void> owner;
  };
  std::string head;
  std::vector<Piece> payload;
  // Nobody waits for the message. A channel may let the receiver find it when something else wakes it.
  bool relaxed = false;
};

// A message that has come, in pieces of any length. They live as long as `owner`.
struct IncomingMessage {
  std::vector<absl::string_view> pieces;
  std::shared_ptr<const void> owner;
};

// A message in one piece.
inline IncomingMessage ToIncoming(std::string bytes) {
  const auto owner = std::make_shared<const std::string>(std::move(bytes));
  return {{*owner}, owner};
}

}  // namespace weir
