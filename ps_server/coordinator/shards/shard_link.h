#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "proto/shard_control.pb.h"

namespace weir {

// The events that a link reports to its coordinator. A link calls these functions on any thread, one at a
// time and in order. They must not block.
struct ShardLinkEvents {
  std::function<void()> connected;
  std::function<void(v1::ShardReport)> report;
  // Called once, as the last function. OK: the shard has received a Shutdown. An error before `connected`:
  // the shard refuses the link. While a shard is out of reach, the link does not end, but keeps trying.
  // FailedPrecondition: the shard would refuse every link. Unauthenticated, PermissionDenied, Unimplemented
  // (a different version of the protocol): the shard would refuse every link, too, since the two ends do not
  // fit together. After any other error a new link may be opened.
  std::function<void(absl::Status)> ended;
};

// The coordinator's ordered stream to one shard. Send() never blocks. Messages that are sent shortly before
// the link breaks, or afterwards, may be lost.
class ShardLink {
 public:
  // Ends the stream, unless a Shutdown is on its way. Does not wait, so an event may still come.
  virtual ~ShardLink() = default;
  virtual void Send(const v1::ControlMessage& message) = 0;
};

// Opens the link to a shard at an address. Shard 0 is the shard of the coordinator's own process.
using ShardLinkFactory = std::function<std::unique_ptr<ShardLink>(uint32_t shard, const std::string& address,
                                                                  ShardLinkEvents events)>;

}  // namespace weir
