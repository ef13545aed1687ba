#pragma once

#include "proto/parameter_server.grpc.pb.h"
#include "ps_server/shard/shard.h"

namespace weir {

// A Shard over gRPC: puts the chunks of a push together, checking each before it is kept, and cuts the answer
// to a pull into chunks. The shard outlives it.
class ParameterServerService final : public v1::ParameterServer::CallbackService {
 public:
  explicit ParameterServerService(Shard* shard) : shard_(shard) {}

  grpc::ServerWriteReactor<v1::PullReply>* Pull(grpc::CallbackServerContext*,
                                                const v1::PullRequest* request) override;
  grpc::ServerReadReactor<v1::PushRequest>* Push(grpc::CallbackServerContext*, v1::PushReply* reply) override;
  grpc::ServerBidiReactor<v1::PushRequest, v1::PushPullReply>* PushPull(
      grpc::CallbackServerContext*) override;

 private:
  Shard* const shard_;
};

}  // namespace weir
