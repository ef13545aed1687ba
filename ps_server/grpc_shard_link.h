#pragma once

#include <memory>
#include <string>

#include "ps_server/coordinator/shard_link.h"

namespace weir {

// The coordinator's end of ShardControl.Attach, to a shard of another process. Its destructor waits (at most
// two seconds if a Shutdown was sent, for the shard to take it) and lets no event through afterwards.
std::unique_ptr<ShardLink> OpenGrpcShardLink(const std::string& address, ShardLinkEvents events);

}  // namespace weir
