// A program of two gRPC calls whose callbacks share an int. argv[1] selects the case; see main(). For
// tsan_test.

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <thread>

namespace weir {
namespace {

int shared_value = 0;

// Relaxed, so that it orders nothing: only gRPC can order the accesses to shared_value.
std::atomic<int> here{0};

void Await(int count) {
  while (here.load(std::memory_order_relaxed) < count) std::this_thread::yield();
}

void Meet() {
  here.fetch_add(1, std::memory_order_relaxed);
  Await(2);
}

// Ends every call as soon as it arrives, or once both have arrived if they have to meet.
class Service final : public grpc::CallbackGenericService {
 public:
  explicit Service(bool meet) : meet_(meet) {}

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* /*context*/) override {
    class Reactor final : public grpc::ServerGenericBidiReactor {
      void OnDone() override { delete this; }
    };
    if (meet_) {
      Meet();
      ++shared_value;
    }
    auto* const reactor = new Reactor;
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  const bool meet_;
};

class Call final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit Call(grpc::GenericStub& stub) { stub.PrepareBidiStreamingCall(&context_, "/race/Race", {}, this); }
  void OnDone(const grpc::Status& /*status*/) override {
    ++shared_value;
    done_ = true;
  }
  void AwaitDone() const {
    while (!done_) std::this_thread::yield();
  }

 private:
  grpc::ClientContext context_;
  std::atomic<bool> done_{false};
};

int Run(const std::string& kind) {
  Service service(kind == "between-callbacks");
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 2;
  grpc::GenericStub stub(
      grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()));
  if (kind == "between-callbacks") {
    Call first(stub), second(stub);
    first.StartCall();
    second.StartCall();
    first.AwaitDone();
    second.AwaitDone();
  } else {
    Call call(stub);
    if (kind == "none") ++shared_value;
    call.StartCall();
    if (kind == "after-the-start") ++shared_value;
    call.AwaitDone();
  }
  server->Shutdown();
  std::cout << "ran to its end\n";
  return 0;
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) { return argc == 2 ? weir::Run(argv[1]) : 2; }
