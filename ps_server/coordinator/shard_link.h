#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "proto/shard_control.pb.h"

namespace weir {

// What a link tells its coordinator. On any thread, one call at a time and in order for each link; must not
// block.
struct ShardLinkEvents {
  std::function<void()> connected;
  std::function<void(v1::ShardReport)> report;
  // Once, unless a Shutdown was sent. Before `connected`: the shard refuses. Being out of reach is no reason:
  // a link tries on. FailedPrecondition: it would refuse for ever. Unauthenticated, PermissionDenied,
  // Unimplemented (another version of the protocol): the same, since the two do not fit together. After all
  // else another link may be opened.
  std::function<void(absl::Status)> broken;
};

// The coordinator's ordered stream to one shard. Send() never blocks; what is sent before the link breaks and
// after may be lost.
class ShardLink {
 public:
  // Ends the stream, unless a Shutdown is on its way. Does not wait: an event may still come.
  virtual ~ShardLink() = default;
  virtual void Send(const v1::ControlMessage& message) = 0;
};

// Opens the link to shard `shard`, at an address (its own process's shard has the index 0).
using ShardLinkFactory = std::function<std::unique_ptr<ShardLink>(uint32_t shard, const std::string& address,
                                                                  ShardLinkEvents events)>;

}  // namespace weir
