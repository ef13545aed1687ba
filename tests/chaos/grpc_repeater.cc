#include "tests/chaos/grpc_repeater.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "common/base/random.h"
#include "common/sync/mutex.h"
#include "proto/parameter_server.grpc.pb.h"
#include "tests/integration/grpc_forwarder.h"
#include "tests/ps_server/grpc_raw_stream.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;
using grpc::ByteBuffer;
using std::chrono::milliseconds;

// One of this many messages is held back, or is sent twice.
constexpr uint32_t kDelayOneOf = 16, kRepeatOneOf = 8;
constexpr uint32_t kMostDelayMs = 80, kMostLateMs = 2500;
constexpr std::chrono::seconds kUnaryLimit{10};

class RepeaterImpl final : public GrpcRepeater {
 public:
  RepeaterImpl(const std::string& server_address, uint64_t seed);
  ~RepeaterImpl() override;

  std::string address() const override { return forwarder_->address(); }
  Counts counts() const override {
    MutexLock lock(mutex_);
    return counts_;
  }
  std::vector<RepeatedPush> pushes() const override {
    MutexLock lock(mutex_);
    return pushes_;
  }

 private:
  // Runs `forward` at once or later, and may send `message` again.
  void Receive(const std::string& method, const ByteBuffer& message, std::function<void()> forward);
  void Repeat(const std::string& method, const ByteBuffer& message);
  void RepeatPush(const v1::ExchangeRequest& message);
  void RepeatUnary(const std::string& method, const ByteBuffer& message);
  void At(Clock::time_point when, std::function<void()> what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunTimers();

  mutable Mutex mutex_;
  CondVar changed_;
  RandomStream random_ ABSL_GUARDED_BY(mutex_);
  Counts counts_ ABSL_GUARDED_BY(mutex_);
  std::vector<RepeatedPush> pushes_ ABSL_GUARDED_BY(mutex_);
  std::multimap<Clock::time_point, std::function<void()>> timers_ ABSL_GUARDED_BY(mutex_);
  int unary_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> exchanges_;  // only the timers' thread uses them until it has ended
  std::thread timer_thread_;
  // Calls Receive().
  std::unique_ptr<GrpcForwarder> forwarder_;
  // To the server behind it.
  std::unique_ptr<grpc::GenericStub> stub_;
  std::unique_ptr<v1::ParameterServer::Stub> shard_;
};

RepeaterImpl::RepeaterImpl(const std::string& server_address, uint64_t seed)
    : random_(RandomKey(seed, "repeater"), 0) {
  GrpcForwarder::Options options;
  options.server = server_address;
  options.on_request = [this](const std::string& method, ByteBuffer* message, std::function<void()> forward) {
    Receive(method, *message, std::move(forward));
  };
  forwarder_ = GrpcForwarder::Start(std::move(options));
  stub_ = std::make_unique<grpc::GenericStub>(forwarder_->channel());
  shard_ = v1::ParameterServer::NewStub(forwarder_->channel());
  timer_thread_ = std::thread([this] { RunTimers(); });
}

RepeaterImpl::~RepeaterImpl() {
  forwarder_.reset();
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  timer_thread_.join();
  for (std::thread& exchange : exchanges_) exchange.join();
  MutexLock lock(mutex_);
  while (unary_calls_ > 0) changed_.Wait(mutex_);
}

void RepeaterImpl::Receive(const std::string& method, const ByteBuffer& message,
                           std::function<void()> forward) {
  {
    MutexLock lock(mutex_);
    const Clock::time_point now = Clock::now();
    if (random_.NextBelow(kRepeatOneOf) == 0) {
      const uint32_t late = random_.NextBelow(2) == 0 ? 0 : random_.NextBelow(kMostLateMs);
      At(now + milliseconds(late), [this, method, message] { Repeat(method, message); });
    }
    if (random_.NextBelow(kDelayOneOf) == 0) {
      ++counts_.delayed;
      return At(now + milliseconds(random_.NextBelow(kMostDelayMs)), std::move(forward));
    }
  }
  forward();
}

void RepeaterImpl::Repeat(const std::string& method, const ByteBuffer& message) {
  if (!absl::EndsWith(method, "/Exchange")) return RepeatUnary(method, message);
  v1::ExchangeRequest request;
  ByteBuffer bytes = message;
  if (!grpc::SerializationTraits<v1::ExchangeRequest>::Deserialize(&bytes, &request).ok()) std::abort();
  const uint64_t size = request.push().dtype() == v1::BF16 ? 2 : 4;
  // A pull changes nothing, and the rest of a longer gradient is in messages that the repeater would have to
  // keep.
  if (!request.has_push() || request.gradient().size() != request.push().elements() * size) return;
  request.clear_pull();
  request.clear_released();
  exchanges_.emplace_back([this, request = std::move(request)] { RepeatPush(request); });
}

void RepeaterImpl::RepeatPush(const v1::ExchangeRequest& message) {
  RawStream stream(*shard_);
  const ExchangeResult result = stream.Run({message});
  // A stream that is cancelled tells ps:0 that the worker's connection broke, which is another fault than
  // this.
  stream.WritesDone();
  stream.End().IgnoreError();
  MutexLock lock(mutex_);
  ++counts_.pushes;
  if (!result.push.has_value() || result.push->outcome() != v1::OK) return;
  const v1::PushRequest& push = message.push();
  pushes_.push_back({push.caller().worker(), push.caller().incarnation(), push.clock(), push.part(),
                     result.push->version().incarnation(), result.push->version().count()});
}

void RepeaterImpl::RepeatUnary(const std::string& method, const ByteBuffer& message) {
  struct State {
    grpc::ClientContext context;
    ByteBuffer request, reply;
  };
  const auto state = std::make_shared<State>();
  state->request = message;
  state->context.set_deadline(std::chrono::system_clock::now() + kUnaryLimit);
  {
    MutexLock lock(mutex_);
    ++unary_calls_;
  }
  stub_->UnaryCall(&state->context, method, {}, &state->request, &state->reply,
                   [this, state](const grpc::Status& /*status*/) {
                     MutexLock lock(mutex_);
                     ++counts_.calls;
                     --unary_calls_;
                     changed_.NotifyAll();
                   });
}

void RepeaterImpl::At(Clock::time_point when, std::function<void()> what) {
  timers_.emplace(when, std::move(what));
  changed_.NotifyAll();
}

void RepeaterImpl::RunTimers() {
  while (true) {
    std::function<void()> due;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && (timers_.empty() || timers_.begin()->first > Clock::now())) {
        if (timers_.empty()) {
          changed_.Wait(mutex_);
        } else {
          changed_.WaitUntil(mutex_, timers_.begin()->first);
        }
      }
      if (stopping_) return;
      due = std::move(timers_.begin()->second);
      timers_.erase(timers_.begin());
    }
    due();
  }
}

}  // namespace

std::unique_ptr<GrpcRepeater> GrpcRepeater::Start(const std::string& server_address, uint64_t seed) {
  return std::make_unique<RepeaterImpl>(server_address, seed);
}

}  // namespace weir
