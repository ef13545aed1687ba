#include "tests/protocol/grpc_earlier_path.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>

#include "google/protobuf/descriptor.h"
#include "tests/integration/grpc_forwarder.h"

namespace weir {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::Message;
using google::protobuf::MessageFactory;
using google::protobuf::MethodDescriptor;
using grpc::ByteBuffer;

// "/package.Service/Method". nullptr: of another protocol, such as gRPC's health.
const MethodDescriptor* Find(std::string path) {
  path.erase(0, 1);
  std::replace(path.begin(), path.end(), '/', '.');
  return DescriptorPool::generated_pool()->FindMethodByName(path);
}

class EarlierPathImpl final : public EarlierPath {
 public:
  EarlierPathImpl(const std::string& server, const EarlierWire& earlier) : earlier_(earlier) {
    GrpcForwarder::Options options;
    options.server = server;
    options.on_request = [this](const std::string& path, ByteBuffer* message,
                                const std::function<void()>& forward) {
      if (const MethodDescriptor* method = Find(path)) Change(method->input_type(), message);
      forward();
    };
    options.on_reply = [this](const std::string& path, ByteBuffer* message) {
      if (const MethodDescriptor* method = Find(path)) Change(method->output_type(), message);
    };
    forwarder_ = GrpcForwarder::Start(std::move(options));
  }

  std::string address() const override { return forwarder_->address(); }
  uint64_t changed() const override { return changed_; }

 private:
  void Change(const Descriptor* type, ByteBuffer* bytes) {
    const std::unique_ptr<Message> message(MessageFactory::generated_factory()->GetPrototype(type)->New());
    grpc::Slice slice;
    if (!bytes->DumpToSingleSlice(&slice).ok()) std::abort();
    // Bytes that are no message travel on as they are.
    if (!message->ParseFromArray(slice.begin(), static_cast<int>(slice.size()))) return;
    if (!MakeEarlier(earlier_, message.get())) return;
    ++changed_;
    const grpc::Slice changed(message->SerializeAsString());
    *bytes = ByteBuffer(&changed, 1);
  }

  const EarlierWire& earlier_;
  std::atomic<uint64_t> changed_{0};
  std::unique_ptr<GrpcForwarder> forwarder_;
};

}  // namespace

std::unique_ptr<EarlierPath> EarlierPath::Start(const std::string& server, const EarlierWire& earlier) {
  return std::make_unique<EarlierPathImpl>(server, earlier);
}

}  // namespace weir
