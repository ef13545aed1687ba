#include "tests/conformance/grpc_channel_under_test.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <optional>
#include <utility>

#include "client/grpc/grpc_poller.h"
#include "client/grpc/grpc_shard_channel.h"
#include "common/config/address.h"
#include "common/rpc/grpc_payload.h"
#include "common/rpc/grpc_status.h"
#include "ps_server/grpc/grpc_local_listener.h"
#include "ps_server/shared_memory/shared_memory_server.h"

namespace weir {
namespace {

template <typename T>
T Must(absl::StatusOr<T> result) {
  if (result.ok()) return *std::move(result);
  std::cerr << result.status() << "\n";
  std::abort();
}

// gRPC holds this object until the call is over.
class GrpcShardEnd final : public ShardEnd,
                           public grpc::ServerGenericBidiReactor,
                           public std::enable_shared_from_this<GrpcShardEnd> {
 public:
  GrpcShardEnd(Bell& bell, std::string peer) : bell_(bell), peer_(std::move(peer)) {}
  void Start() {
    self_ = shared_from_this();
    StartRead(&arriving_);
  }
  const std::string& peer() const { return peer_; }

  void Send(std::string message) override {
    MutexLock lock(mutex_);
    to_send_.push_back(ToByteBuffer({std::move(message), {}}));
    WriteNext();
  }
  void End(const absl::Status& status) override {
    MutexLock lock(mutex_);
    if (!end_.has_value()) end_ = ToGrpc(status);
    WriteNext();
  }
  std::vector<std::string> received() const override {
    MutexLock lock(mutex_);
    return received_;
  }
  bool over() const override {
    MutexLock lock(mutex_);
    return over_;
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    const IncomingMessage message = Must(ToIncoming(arriving_));
    std::string bytes;
    for (absl::string_view piece : message.pieces) bytes.append(piece.data(), piece.size());
    arriving_.Clear();
    {
      MutexLock lock(mutex_);
      received_.push_back(std::move(bytes));
    }
    bell_.Ring();
    StartRead(&arriving_);
  }
  void OnWriteDone(bool) override {
    MutexLock lock(mutex_);
    to_send_.pop_front();
    writing_ = false;
    WriteNext();
  }
  void OnCancel() override {
    {
      MutexLock lock(mutex_);
      over_ = true;
      if (!end_.has_value()) end_ = grpc::Status::CANCELLED;
      WriteNext();
    }
    bell_.Ring();
  }
  void OnDone() override {
    {
      MutexLock lock(mutex_);
      over_ = true;
    }
    bell_.Ring();
    self_.reset();
  }
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (!to_send_.empty() && !over_) {
      writing_ = true;
      StartWrite(&to_send_.front());
    } else if (end_.has_value()) {
      finished_ = true;
      Finish(*end_);
    }
  }

  Bell& bell_;
  const std::string peer_;
  std::shared_ptr<GrpcShardEnd> self_;
  grpc::ByteBuffer arriving_;

  mutable Mutex mutex_;
  std::vector<std::string> received_ ABSL_GUARDED_BY(mutex_);
  std::deque<grpc::ByteBuffer> to_send_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
};

// The streams of all processes, oldest first.
struct Streams {
  std::vector<std::shared_ptr<GrpcShardEnd>> Get() const {
    MutexLock lock(mutex);
    return ends;
  }
  Bell& bell;
  mutable Mutex mutex;
  std::vector<std::shared_ptr<GrpcShardEnd>> ends ABSL_GUARDED_BY(mutex);
};

// Takes streams of bytes, not of messages, because the tests compare what travels.
class Service final : public grpc::CallbackGenericService {
 public:
  explicit Service(Streams& streams) : streams_(streams) {}
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    auto end = std::make_shared<GrpcShardEnd>(streams_.bell, context->peer());
    GrpcShardEnd* const reactor = end.get();
    {
      MutexLock lock(streams_.mutex);
      streams_.ends.push_back(std::move(end));
    }
    reactor->Start();
    return reactor;
  }

 private:
  Streams& streams_;
};

// A server's process.
struct Process {
  explicit Process(Streams& streams) : service(std::make_unique<Service>(streams)) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterCallbackGenericService(service.get());
    server = builder.BuildAndStart();
    if (server == nullptr) std::abort();
    Address bound;
    bound.host = "127.0.0.1";
    bound.port = static_cast<uint16_t>(port);
    address = bound.ToString();
    listener = Must(GrpcLocalListener::Start(server.get(), bound));
    memory = Must(SharedMemoryServer::Start(bound, {}));
  }
  void Kill() {
    if (server == nullptr) return;
    listener = nullptr;
    memory = nullptr;
    server->Shutdown(std::chrono::system_clock::now());
    server = nullptr;
  }

  std::string address;
  std::unique_ptr<Service> service;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<GrpcLocalListener> listener;
  std::unique_ptr<SharedMemoryServer> memory;
};

class GrpcChannelToProcess final : public GrpcChannelUnderTest {
 public:
  explicit GrpcChannelToProcess(v1::WireConfig::Transport transport) {
    options_.server_wait = std::chrono::seconds(5);
    options_.wire.set_transport(transport);
    options_.wire.set_chunk_kib(256);
    options_.wire.set_chunks_in_flight(3);
    // Enough bytes for a connection of its own.
    options_.bytes = 4 << 20;
    processes_.emplace_back(streams_);
    channel_ = OpenTo(address());
  }
  ~GrpcChannelToProcess() override {
    for (Process& process : processes_) process.Kill();
  }

  ShardChannel& channel() override { return *channel_; }
  bool Await(const std::function<bool()>& done) override { return bell_.Await(done); }
  Bell& bell() override { return bell_; }
  std::vector<std::shared_ptr<ShardEnd>> streams() const override {
    const auto ends = streams_.Get();
    return {ends.begin(), ends.end()};
  }
  void Kill() override { processes_[0].Kill(); }
  SharedMemory& memory() override { return *processes_[0].memory; }
  std::shared_ptr<float> Allocate(size_t elements) override {
    return processes_[0].memory->Allocate(elements);
  }
  const std::string& address() const override { return processes_[0].address; }
  std::string peer(size_t stream) const override { return streams_.Get()[stream]->peer(); }
  std::string StartAnother() override { return processes_.emplace_back(streams_).address; }
  std::unique_ptr<ShardChannel> OpenTo(const std::string& address) override {
    options_.address = address;
    return std::make_unique<GrpcShardChannel>(options_, *poller_);
  }

 private:
  Bell bell_;
  Streams streams_{bell_, {}, {}};
  std::vector<Process> processes_;
  GrpcShardChannel::Options options_;
  const std::shared_ptr<GrpcPoller> poller_ = GrpcPoller::Shared(std::chrono::microseconds(0));
  std::unique_ptr<ShardChannel> channel_;
};

}  // namespace

std::unique_ptr<GrpcChannelUnderTest> MakeGrpcChannelUnderTest(v1::WireConfig::Transport transport) {
  return std::make_unique<GrpcChannelToProcess>(transport);
}

}  // namespace weir
