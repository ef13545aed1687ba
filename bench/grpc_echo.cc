#include "bench/grpc_echo.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "bench/memory.h"

namespace weir::bench {
namespace {

// The operation that a completion belongs to.
enum Tag : intptr_t { kStart = 1, kRead, kWrite };
void* ToTag(Tag tag) { return reinterpret_cast<void*>(tag); }

class EchoServer : public StepServer {
 public:
  bool Start(const std::string& host) {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort(host + ":0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterAsyncGenericService(&service_);
    queue_ = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return false;
    address_ = absl::StrCat(host, ":", port);
    std::thread([this] { Serve(); }).detach();
    return true;
  }
  // The server ends with its process.
  ~EchoServer() override { _exit(0); }
  std::string address() const override { return address_; }
  pid_t pid() const override { return getpid(); }

 private:
  // Serves one stream.
  void Serve() {
    grpc::GenericServerContext context;
    grpc::GenericServerAsyncReaderWriter stream(&context);
    service_.RequestCall(&context, &stream, queue_.get(), queue_.get(), ToTag(kStart));
    grpc::ByteBuffer message;
    bool received = false, writing = false;
    void* tag;
    for (bool ok; queue_->Next(&tag, &ok) && ok;) {
      if (tag == ToTag(kStart)) stream.Read(&message, ToTag(kRead));
      if (tag == ToTag(kRead)) received = true;
      if (tag == ToTag(kWrite)) writing = false;
      if (!received || writing) continue;
      stream.Write(message, ToTag(kWrite));
      writing = true;
      received = false;
      stream.Read(&message, ToTag(kRead));
    }
  }

  grpc::AsyncGenericService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

class EchoClient : public StepClient {
 public:
  EchoClient(const Contestant& contestant, const std::string& address)
      : tensor_(contestant.elements, 1),
        stub_(grpc::CreateChannel(address, grpc::InsecureChannelCredentials())),
        stream_(stub_.PrepareCall(&context_, "/weir.bench.Echo/Echo", &queue_)) {
    stream_->StartCall(ToTag(kStart));
  }
  ~EchoClient() override { _exit(0); }

  absl::Span<const float> weights() const override { return tensor_.values(); }
  absl::Status Step() override {
    if (!started_ && !Wait(1)) return absl::UnavailableError("the echo's stream cannot be started");
    started_ = true;
    const grpc::Slice slice(tensor_.data(), tensor_.bytes(), grpc::Slice::STATIC_SLICE);
    stream_->Write(grpc::ByteBuffer(&slice, 1), ToTag(kWrite));
    stream_->Read(&reply_, ToTag(kRead));
    if (!Wait(2)) return absl::UnavailableError("the echo's stream has ended");
    return absl::OkStatus();
  }

 private:
  bool Wait(int completions) {
    void* tag;
    for (bool ok; completions > 0 && queue_.Next(&tag, &ok) && ok;) --completions;
    return completions == 0;
  }

  Tensor tensor_;
  grpc::ByteBuffer reply_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  bool started_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StepServer>> StartEchoServer(const std::string& host) {
  auto server = std::make_unique<EchoServer>();
  if (!server->Start(host)) return absl::UnavailableError(absl::StrCat("gRPC cannot listen on ", host));
  return server;
}

absl::StatusOr<std::unique_ptr<StepClient>> ConnectEchoClient(const Contestant& contestant,
                                                              const std::string& address) {
  return std::make_unique<EchoClient>(contestant, address);
}

}  // namespace weir::bench
