#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>

namespace weir {

// Calls any method, "package.Service/Method", with one message, and waits for its end. Works for streaming
// methods, too. `context` has a deadline. `reply` is the message that came, if one did.
inline grpc::Status CallWithOneMessage(grpc::GenericStub& stub, grpc::ClientContext& context,
                                       const std::string& method, const std::string& bytes,
                                       grpc::ByteBuffer* reply) {
  grpc::CompletionQueue queue;
  const grpc::Slice slice(bytes);
  const auto call = stub.PrepareUnaryCall(&context, "/" + method, grpc::ByteBuffer(&slice, 1), &queue);
  grpc::Status status;
  call->StartCall();
  call->Finish(reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return status;
}

// Calls gRPC's health check, for 20 seconds at most. `wait_for_ready`: a channel without a connection is
// waited for.
inline grpc::Status CheckHealth(const std::shared_ptr<grpc::Channel>& channel, bool wait_for_ready = false) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  context.set_wait_for_ready(wait_for_ready);
  grpc::GenericStub stub(channel);
  grpc::ByteBuffer reply;
  return CallWithOneMessage(stub, context, "grpc.health.v1.Health/Check", "", &reply);
}

}  // namespace weir
