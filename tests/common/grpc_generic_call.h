#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

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

}  // namespace weir
