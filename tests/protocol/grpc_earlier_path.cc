#include "tests/protocol/grpc_earlier_path.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "common/threads/mutex.h"
#include "google/protobuf/descriptor.h"
#include "tests/integration/grpc_forwarder.h"

namespace weir {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::Message;
using google::protobuf::MessageFactory;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;
using grpc::ByteBuffer;

// "/package.Service/Method". nullptr: of another protocol, such as gRPC's health.
const MethodDescriptor* Find(std::string path) {
  path.erase(0, 1);
  std::replace(path.begin(), path.end(), '/', '.');
  return DescriptorPool::generated_pool()->FindMethodByName(path);
}

class EarlierPathImpl final : public EarlierPath {
 public:
  EarlierPathImpl(const std::string& listen, const std::string& server, const EarlierWire& earlier)
      : earlier_(earlier) {
    GrpcForwarder::Options options;
    options.listen = listen;
    options.server = server;
    options.on_call = [this](const std::string& path) -> GrpcForwarder::OnRequest {
      return [this, method = Find(path)](ByteBuffer* message, const std::function<void()>& forward) {
        if (method != nullptr) Change(*method->service(), method->input_type(), message);
        forward();
      };
    };
    options.on_reply = [this](const std::string& path, ByteBuffer* message) {
      if (const MethodDescriptor* method = Find(path))
        Change(*method->service(), method->output_type(), message);
    };
    forwarder_ = GrpcForwarder::Start(std::move(options));
  }

  uint64_t changed(const std::string& service) const override {
    MutexLock lock(mutex_);
    const auto found = changed_.find(service);
    return found == changed_.end() ? 0 : found->second;
  }

 private:
  void Change(const ServiceDescriptor& service, const Descriptor* type, ByteBuffer* bytes) {
    const std::unique_ptr<Message> message(MessageFactory::generated_factory()->GetPrototype(type)->New());
    grpc::Slice slice;
    if (!bytes->DumpToSingleSlice(&slice).ok()) std::abort();
    // Bytes that are no message travel on as they are.
    if (!message->ParseFromArray(slice.begin(), static_cast<int>(slice.size()))) return;
    if (!MakeEarlier(earlier_, message.get())) return;
    {
      MutexLock lock(mutex_);
      ++changed_[service.full_name()];
    }
    const grpc::Slice changed(message->SerializeAsString());
    *bytes = ByteBuffer(&changed, 1);
  }

  const EarlierWire& earlier_;
  mutable Mutex mutex_;
  std::map<std::string, uint64_t> changed_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<GrpcForwarder> forwarder_;
};

}  // namespace

std::unique_ptr<EarlierPath> EarlierPath::Start(const std::string& listen, const std::string& server,
                                                const EarlierWire& earlier) {
  return std::make_unique<EarlierPathImpl>(listen, server, earlier);
}

}  // namespace weir
