#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "proto/shard_control.pb.h"

namespace weir {

// What a link tells its coordinator. A link calls these functions on any thread, one at a time and in order.
// They must not block.
struct ShardLinkEvents {
  std::function<void()> connected;
  std::function<void(v1::ShardReport)> report;
  // Called once, as the last one. OK: the shard has received a Shutdown. An error before `connected`: the
  // shard refuses the link. A shard that is out of reach does not end the link, which tries on.
  // FailedPrecondition: the shard would refuse every link. Unauthenticated, PermissionDenied, Unimplemented
  // (another version of the protocol): the same, since the two do not fit together. After any other error
  // another link may be opened.
  std::function<void(absl::Status)> ended;
};

// The coordinator's ordered stream to one shard. Send() never blocks. Messages that are sent shortly before
// the link breaks, or afterwards, may be lost.
class ShardLink {
 public:
  // Ends the stream, unless a Shutdown is on its way. Does not wait: an event may still come.
  virtual ~ShardLink() = default;
  virtual void Send(const v1::ControlMessage& message) = 0;
};

// Opens the link to shard `shard` at an address. Shard 0 is the one of the coordinator's own process.
using ShardLinkFactory = std::function<std::unique_ptr<ShardLink>(uint32_t shard, const std::string& address,
                                                                  ShardLinkEvents events)>;

}  // namespace weir
