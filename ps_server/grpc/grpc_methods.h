#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/async_stream.h>

#include <deque>
#include <string>

#include "absl/strings/string_view.h"

namespace weir {

// The methods of a service, each of whose calls this server takes when the headers have come: so a stranger's
// call is refused unread, and a request that does not come has a time limit. The services that gRPC generates
// take a call of a method with one request only when all of the request has come, from everybody, however
// long that lasts. On the wire such a call is a stream in which each end sends one message.
class GrpcMethods final : public grpc::Service {
 public:
  using Stream = grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

  // `service`: the full name of one of this program's services, "weir.v1.Coordinator".
  explicit GrpcMethods(absl::string_view service);

  // The number of a method of the service, "weir.v1.Coordinator/Join".
  int IndexOf(absl::string_view method) const;
  // Asks gRPC for the next call of a method. The event comes to the queue, with the tag.
  void Accept(int method, grpc::ServerContext* context, Stream* stream, grpc::ServerCompletionQueue* queue,
              void* tag) {
    RequestAsyncBidiStreaming(method, context, stream, queue, queue, tag);
  }

 private:
  // "/weir.v1.Coordinator/Join". gRPC refers to them.
  std::deque<std::string> paths_;
};

}  // namespace weir
