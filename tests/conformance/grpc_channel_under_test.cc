#include "tests/conformance/grpc_channel_under_test.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <optional>
#include <thread>
#include <utility>

#include "client/grpc/grpc_poller.h"
#include "client/grpc/grpc_shard_channel.h"
#include "common/config/address.h"
#include "common/protocol/segment_messages.h"
#include "common/rpc/grpc_convert.h"
#include "common/shared_memory/doorbell.h"
#include "common/shared_memory/message_ring.h"
#include "ps_server/grpc/grpc_listeners.h"
#include "ps_server/shared_memory/shared_memory_server.h"

namespace weir {
namespace {

template <typename T>
T Must(absl::StatusOr<T> result) {
  if (result.ok()) return *std::move(result);
  std::cerr << result.status() << "\n";
  std::abort();
}

class GrpcShardEnd;

// The streams of all processes, oldest first.
struct Streams {
  std::vector<std::shared_ptr<GrpcShardEnd>> Get() const {
    MutexLock lock(mutex);
    return ends;
  }
  void Add(std::shared_ptr<GrpcShardEnd> end) {
    MutexLock lock(mutex);
    ends.push_back(std::move(end));
  }
  Bell& bell;
  mutable Mutex mutex;
  std::vector<std::shared_ptr<GrpcShardEnd>> ends ABSL_GUARDED_BY(mutex);
};

// gRPC holds this object until the call is over. With a ring, messages travel over that, and a RingPump calls
// Pump().
class GrpcShardEnd final : public ShardEnd,
                           public grpc::ServerGenericBidiReactor,
                           public std::enable_shared_from_this<GrpcShardEnd> {
 public:
  GrpcShardEnd(Streams& streams, std::string peer, std::unique_ptr<MessageRing> ring)
      : streams_(streams), peer_(std::move(peer)), ring_(std::move(ring)) {}
  void Start() {
    self_ = shared_from_this();
    // Calls with rings come before the first messages, and perhaps not in the order in which their clients
    // opened them.
    if (ring_ == nullptr) streams_.Add(self_);
    StartRead(&arriving_);
  }
  const std::string& peer() const { return peer_; }

  void Send(std::string message) override {
    MutexLock lock(mutex_);
    to_send_.push_back(std::move(message));
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

  // Sends what fits, and takes a message unless `hold`. Returns whether there was anything to do.
  bool Pump(bool hold) {
    bool did = false, first = false;
    {
      MutexLock lock(mutex_);
      if (over_ || finished_) return false;
      if (ring_->MayFlush()) {
        did = true;
        ring_->Flush();
        WriteNext();
      }
      if (!hold && !end_.has_value() && ring_->MayRead()) {
        did = true;
        std::string message;
        const absl::StatusOr<bool> whole = ring_->Read(&message);
        if (!whole.ok()) {
          end_ = ToGrpc(whole.status());
          WriteNext();
        } else if (*whole) {
          first = received_.empty();
          received_.push_back(std::move(message));
        }
      }
    }
    if (first) streams_.Add(shared_from_this());
    if (did) streams_.bell.Ring();
    return did;
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
    streams_.bell.Ring();
    StartRead(&arriving_);
  }
  void OnWriteDone(bool) override {
    MutexLock lock(mutex_);
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
    streams_.bell.Ring();
  }
  void OnDone() override {
    {
      MutexLock lock(mutex_);
      over_ = true;
    }
    streams_.bell.Ring();
    self_.reset();
  }
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_) return;
    while (!writing() && !to_send_.empty() && !over_) {
      OutgoingMessage message{std::move(to_send_.front()), {}};
      to_send_.pop_front();
      if (ring_ != nullptr) {
        ring_->Write(std::move(message));
      } else {
        writing_ = true;
        leaving_ = ToByteBuffer(std::move(message));
        StartWrite(&leaving_);
      }
    }
    if (end_.has_value() && (!writing() || (ring_ != nullptr && over_))) {
      finished_ = true;
      Finish(*end_);
    }
  }
  bool writing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return writing_ || (ring_ != nullptr && !ring_->flushed());
  }

  Streams& streams_;
  const std::string peer_;
  std::shared_ptr<GrpcShardEnd> self_;
  grpc::ByteBuffer arriving_;

  mutable Mutex mutex_;
  // Null: messages travel in the call.
  const std::unique_ptr<MessageRing> ring_;
  std::vector<std::string> received_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> to_send_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer leaving_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
};

// The thread that serves the rings of all ends, as a shard's event loop does.
class RingPump {
 public:
  static constexpr uint32_t kBell = 0;
  RingPump() : thread_([this] { Run(); }) {}
  ~RingPump() {
    stop_ = true;
    bells_->Bell(kBell)->Ring();
    thread_.join();
  }
  RingPump(const RingPump&) = delete;
  RingPump& operator=(const RingPump&) = delete;

  const std::shared_ptr<DoorbellPage>& bells() const { return bells_; }
  void Add(std::shared_ptr<GrpcShardEnd> end) {
    {
      MutexLock lock(mutex_);
      ends_.push_back(std::move(end));
    }
    bells_->Bell(kBell)->Ring();
  }
  void Hold(bool hold) {
    hold_ = hold;
    bells_->Bell(kBell)->Ring();
  }

 private:
  void Run() {
    Doorbell& bell = *bells_->Bell(kBell);
    while (!stop_) {
      // Looks once more after Arm().
      const uint32_t armed = bell.Arm();
      if (!PumpAll() && !stop_) bell.Sleep(armed, Doorbell::Steady::now() + std::chrono::seconds(20));
      bell.Disarm();
    }
  }
  bool PumpAll() {
    std::vector<std::shared_ptr<GrpcShardEnd>> ends;
    {
      MutexLock lock(mutex_);
      ends = ends_;
    }
    bool did = false;
    for (const auto& end : ends) did |= end->Pump(hold_);
    return did;
  }

  const std::shared_ptr<DoorbellPage> bells_ = Must(DoorbellPage::Create());
  std::atomic<bool> stop_ = false, hold_ = false;
  Mutex mutex_;
  std::vector<std::shared_ptr<GrpcShardEnd>> ends_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

// Takes streams of bytes, not of messages, because the tests compare what travels.
class Service final : public grpc::CallbackGenericService {
 public:
  Service(Streams& streams, RingPump* pump) : streams_(streams), pump_(pump) {}
  // Before the first call.
  void SetMemory(SharedMemoryServer* memory) { memory_ = memory; }
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    std::unique_ptr<MessageRing> ring;
    const auto named = context->client_metadata().find(kRingsEntry);
    if (named != context->client_metadata().end() && memory_ != nullptr) {
      ring = memory_.load()->TakeRing({named->second.data(), named->second.size()});
      if (ring == nullptr) std::abort();
      ring->ReadWith(RingPump::kBell);
    }
    const bool pumped = ring != nullptr;
    auto end = std::make_shared<GrpcShardEnd>(streams_, context->peer(), std::move(ring));
    GrpcShardEnd* const reactor = end.get();
    reactor->Start();
    if (pumped) pump_->Add(std::move(end));
    return reactor;
  }

 private:
  Streams& streams_;
  RingPump* const pump_;
  std::atomic<SharedMemoryServer*> memory_ = nullptr;
};

// A server's process.
struct Process {
  // `pump`: null without rings.
  Process(Streams& streams, RingPump* pump) : service(std::make_unique<Service>(streams, pump)) {
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
    listener = Must(ServeLocalSocket(server.get(), bound));
    SharedMemoryServer::Options options;
    if (pump != nullptr) options.bells = pump->bells();
    memory = Must(SharedMemoryServer::Start(bound, options));
    service->SetMemory(memory.get());
  }
  void Kill() {
    if (server == nullptr) return;
    listener = nullptr;
    server->Shutdown(std::chrono::system_clock::now());
    memory = nullptr;
    server = nullptr;
  }

  std::string address;
  std::unique_ptr<Service> service;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<AcceptLoop> listener;
  std::unique_ptr<SharedMemoryServer> memory;
};

class GrpcChannelToProcess final : public GrpcChannelUnderTest {
 public:
  GrpcChannelToProcess(v1::WireConfig::Transport transport, bool rings)
      : pump_(rings ? std::make_unique<RingPump>() : nullptr) {
    options_.server_wait = std::chrono::seconds(5);
    options_.wire.set_transport(transport);
    options_.wire.set_chunk_kib(256);
    options_.wire.set_chunks_in_flight(3);
    // Enough bytes for a connection of its own.
    options_.bytes = 4 << 20;
    processes_.emplace_back(streams_, pump_.get());
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
  std::string StartAnother() override { return processes_.emplace_back(streams_, pump_.get()).address; }
  std::unique_ptr<ShardChannel> OpenTo(const std::string& address) override {
    options_.address = address;
    return std::make_unique<GrpcShardChannel>(options_, *poller_);
  }
  void HoldMessages(bool hold) override { pump_->Hold(hold); }

 private:
  Bell bell_;
  Streams streams_{bell_, {}, {}};
  const std::unique_ptr<RingPump> pump_;
  std::vector<Process> processes_;
  GrpcShardChannel::Options options_;
  const std::shared_ptr<GrpcPoller> poller_ =
      Must(GrpcPoller::Shared(std::chrono::microseconds(0), /*shared_work=*/true));
  std::unique_ptr<ShardChannel> channel_;
};

}  // namespace

std::unique_ptr<GrpcChannelUnderTest> MakeGrpcChannelUnderTest(v1::WireConfig::Transport transport,
                                                               bool rings) {
  return std::make_unique<GrpcChannelToProcess>(transport, rings);
}

}  // namespace weir
