#pragma once

#include <functional>
#include <memory>
#include <string>

#include "client/exchange/shard_channel.h"
#include "client/grpc/grpc_poller.h"
#include "common/rpc/job_token.h"
#include "common/shared_memory/message_ring.h"
#include "grpcpp/generic/generic_stub.h"

namespace weir {

// Open a data stream to the shard that `stub` reaches. The stream's user holds it, and it holds itself until
// it has ended; then it releases the user and calls `gone`. `poller` outlives the stream's end.

// The messages travel in the gRPC call.
std::shared_ptr<DataStream> OpenCallStream(GrpcPoller& poller, grpc::GenericStub& stub, const JobToken& token,
                                           std::shared_ptr<DataStream::User> user,
                                           std::function<void()> gone);

// The messages travel over rings in shared memory. A gRPC call without messages stands for the stream: with
// it the server admits the client, and its end is the stream's end, whichever side dies. `segments`: the
// token by which the server knows the rings (ShardMemory::token()).
std::shared_ptr<DataStream> OpenRingStream(GrpcPoller& poller, grpc::GenericStub& stub, const JobToken& token,
                                           std::unique_ptr<MessageRing> ring, const std::string& segments,
                                           std::shared_ptr<DataStream::User> user,
                                           std::function<void()> gone);

}  // namespace weir
