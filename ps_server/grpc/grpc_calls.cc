#include "ps_server/grpc/grpc_calls.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/impl/rpc_service_method.h>

#include <cstdlib>

#include "common/telemetry/logging.h"

namespace weir {

GrpcMethods::GrpcMethods(absl::string_view service) {
  const google::protobuf::ServiceDescriptor* const descriptor =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(std::string(service));
  if (descriptor == nullptr) {
    LogError("this program has no service ", service);
    std::abort();
  }
  for (int i = 0; i < descriptor->method_count(); ++i) {
    paths_.push_back(absl::StrCat("/", service, "/", descriptor->method(i)->name()));
    AddMethod(new grpc::internal::RpcServiceMethod(paths_.back().c_str(),
                                                   grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
    MarkMethodRaw(i);
  }
}

int GrpcMethods::IndexOf(absl::string_view method) const {
  int index = 0;
  for (const std::string& path : paths_) {
    if (absl::string_view(path).substr(1) == method) return index;
    ++index;
  }
  LogError("the service of ", paths_.empty() ? "no method" : paths_.front(), " has no method ", method);
  std::abort();
}

}  // namespace weir
