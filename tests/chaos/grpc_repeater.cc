#include "tests/chaos/grpc_repeater.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/sync/mutex.h"
#include "proto/parameter_server.grpc.pb.h"
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

class RepeaterImpl final : public GrpcRepeater, grpc::CallbackGenericService {
 public:
  RepeaterImpl(const std::string& server_address, uint64_t seed);
  ~RepeaterImpl() override;

  std::string address() const override { return absl::StrCat("127.0.0.1:", port_); }
  Counts counts() const override {
    MutexLock lock(mutex_);
    return counts_;
  }
  std::vector<RepeatedPush> pushes() const override {
    MutexLock lock(mutex_);
    return pushes_;
  }

  grpc::GenericStub* stub() { return &stub_; }
  // Runs `forward` at once or later, and may send `message` again.
  void Receive(const std::string& method, const ByteBuffer& message, std::function<void()> forward);

 private:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;
  void Repeat(const std::string& method, const ByteBuffer& message);
  void RepeatPush(const v1::ExchangeRequest& message);
  void RepeatUnary(const std::string& method, const ByteBuffer& message);
  void At(Clock::time_point when, std::function<void()> what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunTimers();

  const std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
  const std::unique_ptr<v1::ParameterServer::Stub> shard_;
  int port_ = 0;

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
  std::unique_ptr<grpc::Server> server_;
};

// One call: passes each message of the caller to the server, and each message of the server back. Handles
// unary calls as streams with one message each way.
class Call : public std::enable_shared_from_this<Call> {
 public:
  Call(RepeaterImpl* repeater, grpc::GenericCallbackServerContext* context)
      : repeater_(*repeater), context_(*context), method_(context->method()), caller_(this), server_(this) {
    onward_.set_deadline(context->deadline());
    repeater_.stub()->PrepareBidiStreamingCall(&onward_, method_, {}, &server_);
  }
  grpc::ServerGenericBidiReactor* Start() {
    self_ = shared_from_this();
    // Messages for the server come from outside its reactor, until its stream has ended.
    server_.AddHold();
    server_.StartCall();
    caller_.StartRead(&request_);
    return &caller_;
  }

 private:
  struct Caller final : grpc::ServerGenericBidiReactor {
    explicit Caller(Call* call) : call(call) {}
    void OnReadDone(bool ok) override { call->OnRequest(ok); }
    void OnWriteDone(bool ok) override { call->OnReplied(ok); }
    void OnCancel() override { call->onward_.TryCancel(); }
    // Runs last: the call ends for its caller only after it has ended at the server.
    void OnDone() override { const std::shared_ptr<Call> last = std::move(call->self_); }
    Call* const call;
  };
  struct Server final : grpc::ClientBidiReactor<ByteBuffer, ByteBuffer> {
    explicit Server(Call* call) : call(call) {}
    // The server has taken the call; ps:0 waits for this signal.
    void OnReadInitialMetadataDone(bool ok) override {
      if (ok) call->Taken();
      StartRead(&call->reply_);
    }
    void OnReadDone(bool ok) override { call->OnReply(ok); }
    void OnWriteDone(bool ok) override {
      if (ok) call->caller_.StartRead(&call->request_);
    }
    void OnDone(const grpc::Status& status) override { call->caller_.Finish(status); }
    Call* const call;
  };

  void Taken() {
    for (const auto& [key, value] : onward_.GetServerInitialMetadata()) {
      context_.AddInitialMetadata(std::string(key.data(), key.size()),
                                  std::string(value.data(), value.size()));
    }
    caller_.StartSendInitialMetadata();
  }
  void OnRequest(bool ok) {
    if (ok) {
      return repeater_.Receive(method_, request_, [self = shared_from_this()] {
        MutexLock lock(self->mutex_);
        if (!self->ended_) self->server_.StartWrite(&self->request_);
      });
    }
    MutexLock lock(mutex_);
    if (!ended_) server_.StartWritesDone();
  }
  void OnReply(bool ok) {
    if (ok) return caller_.StartWrite(&reply_);
    {
      MutexLock lock(mutex_);
      ended_ = true;
    }
    server_.RemoveHold();
  }
  void OnReplied(bool ok) {
    if (!ok) onward_.TryCancel();
    server_.StartRead(&reply_);
  }

  RepeaterImpl& repeater_;
  grpc::GenericCallbackServerContext& context_;  // until OnDone()
  const std::string method_;
  grpc::ClientContext onward_;
  ByteBuffer request_, reply_;
  Caller caller_;
  Server server_;
  std::shared_ptr<Call> self_;
  Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // A killed server is soon back.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

RepeaterImpl::RepeaterImpl(const std::string& server_address, uint64_t seed)
    : channel_(Connect(server_address)),
      stub_(channel_),
      shard_(v1::ParameterServer::NewStub(channel_)),
      random_(RandomKey(seed, "repeater"), 0) {
  timer_thread_ = std::thread([this] { RunTimers(); });
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  builder.RegisterCallbackGenericService(this);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) std::abort();
}

RepeaterImpl::~RepeaterImpl() {
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
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

grpc::ServerGenericBidiReactor* RepeaterImpl::CreateReactor(grpc::GenericCallbackServerContext* context) {
  return std::make_shared<Call>(this, context)->Start();
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
  const ExchangeResult result = RawStream(*shard_).Run({message});
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
  stub_.UnaryCall(&state->context, method, {}, &state->request, &state->reply,
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
