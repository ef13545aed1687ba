#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/exchange/shard_channel.h"
#include "proto/job_config.pb.h"
#include "tests/conformance/channel_under_test.h"

namespace weir {

// GrpcShardChannel to a gRPC server of this process. The server offers clients of its host Unix sockets and
// shared memory, as a shard's server does.
class GrpcChannelUnderTest : public ChannelUnderTest {
 public:
  // "127.0.0.1:2222"
  virtual const std::string& address() const = 0;
  // The gRPC connection that a stream came over, as the server names it: "ipv4:127.0.0.1:2223", or "fd:14"
  // for a connection that GrpcLocalListener took.
  virtual std::string peer(size_t stream) const = 0;
  // Starts another server, whose streams are this shard's, too. Returns its address.
  virtual std::string StartAnother() = 0;
  // Another channel, to a shard at this address.
  virtual std::unique_ptr<ShardChannel> OpenTo(const std::string& address) = 0;
  // Only with rings: the shard takes no messages from them until HoldMessages(false).
  virtual void HoldMessages(bool hold) = 0;
};

// `rings`: where memory is shared, messages travel over rings in it.
std::unique_ptr<GrpcChannelUnderTest> MakeGrpcChannelUnderTest(v1::WireConfig::Transport transport,
                                                               bool rings = false);

}  // namespace weir
