#pragma once

#include "proto/parameter_server.grpc.pb.h"
#include "ps_server/shard/shard.h"

namespace weir {

// A Shard over gRPC: puts the chunks of a push together, checking each before it is kept, and cuts the answer
// to a pull into chunks. Messages are handled as bytes (common/wire_codec.h): weights leave as references to
// the published version, gradients are copied once, into the shard's buffer. The shard outlives it.
class ParameterServerService final
    : public v1::ParameterServer::WithRawCallbackMethod_Pull<v1::ParameterServer::WithRawCallbackMethod_Push<
          v1::ParameterServer::WithRawCallbackMethod_PushPull<v1::ParameterServer::Service>>> {
 public:
  explicit ParameterServerService(Shard* shard) : shard_(shard) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Pull(grpc::CallbackServerContext*,
                                                   const grpc::ByteBuffer* request) override;
  grpc::ServerReadReactor<grpc::ByteBuffer>* Push(grpc::CallbackServerContext*,
                                                  grpc::ByteBuffer* reply) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* PushPull(
      grpc::CallbackServerContext*) override;

 private:
  Shard* const shard_;
};

}  // namespace weir
