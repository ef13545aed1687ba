#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <cstring>
#include <mutex>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "bench/bench.grpc.pb.h"
#include "bench/contestant.h"
#include "bench/memory.h"

namespace weir::bench {
namespace {

class ProtobufServer : public StepServer, private PlainParameterServer::Service {
 public:
  ProtobufServer(const std::string& optimizer, int64_t elements) : parameters_(optimizer, elements) {}

  bool Start(const std::string& host) {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(-1);
    builder.SetMaxSendMessageSize(-1);
    builder.AddListeningPort(host + ":0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat(host, ":", port);
    return server_ != nullptr;
  }
  std::string address() const override { return address_; }
  pid_t pid() const override { return getpid(); }

 private:
  grpc::Status Step(grpc::ServerContext*, const TensorMessage* gradient, TensorMessage* weights) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const std::string& values = gradient->values();
    const int64_t n = values.size() / sizeof(float);
    const float* made = parameters_.Apply(0, n, values.data(), version_);
    version_ = 1 - version_;
    weights->set_values(made, values.size());
    return grpc::Status::OK;
  }

  const Parameters parameters_;
  std::string address_;
  std::mutex mutex_;
  int version_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

class ProtobufClient : public StepClient {
 public:
  ProtobufClient(const Contestant& contestant, const std::vector<std::string>& addresses)
      : tensors_(contestant.elements), servers_(addresses.size()) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetMaxSendMessageSize(-1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    for (size_t i = 0; i < addresses.size(); ++i) {
      std::tie(servers_[i].first, servers_[i].last) = PartOf(contestant.elements, i, addresses.size());
      servers_[i].stub = PlainParameterServer::NewStub(
          grpc::CreateCustomChannel(addresses[i], grpc::InsecureChannelCredentials(), arguments));
    }
  }

  absl::Status Step() override {
    for (PerServer& server : servers_) {
      server.gradient.set_values(tensors_.gradient.data() + server.first,
                                 (server.last - server.first) * sizeof(float));
      server.context = std::make_unique<grpc::ClientContext>();
      server.context->set_wait_for_ready(true);
      server.call = server.stub->AsyncStep(server.context.get(), server.gradient, &queue_);
      server.call->Finish(&server.weights, &server.status, &server);
    }
    for (size_t i = 0; i < servers_.size(); ++i) {
      void* tag;
      bool ok;
      queue_.Next(&tag, &ok);
      PerServer& server = *static_cast<PerServer*>(tag);
      if (!server.status.ok()) return absl::UnavailableError(server.status.error_message());
      const std::string& values = server.weights.values();
      std::memcpy(tensors_.weights.data() + server.first, values.data(), values.size());
    }
    return absl::OkStatus();
  }

 private:
  struct PerServer {
    int64_t first, last;
    std::unique_ptr<PlainParameterServer::Stub> stub;
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientAsyncResponseReader<TensorMessage>> call;
    TensorMessage gradient, weights;
    grpc::Status status;
  };

  WorkerTensors tensors_;
  grpc::CompletionQueue queue_;
  std::vector<PerServer> servers_;
};

absl::StatusOr<std::unique_ptr<StepServer>> StartServer(const Contestant& contestant, int index,
                                                        const std::string& host) {
  const auto [first, last] = PartOf(contestant.elements, index, contestant.servers);
  auto server = std::make_unique<ProtobufServer>(contestant.optimizer, last - first);
  if (!server->Start(host)) return absl::UnavailableError(absl::StrCat("gRPC cannot listen on ", host));
  return server;
}

}  // namespace

Kind GrpcProtobuf() {
  return {StartServer, [](const Contestant& contestant, int, const std::vector<std::string>& addresses) {
            return std::make_unique<ProtobufClient>(contestant, addresses);
          }};
}

}  // namespace weir::bench
