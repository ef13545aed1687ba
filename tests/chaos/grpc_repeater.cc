#include "tests/chaos/grpc_repeater.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "common/base/random.h"
#include "common/codec/value_codec.h"
#include "common/protocol/exchange_layout.h"
#include "common/threads/mutex.h"
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

// Collects the pushes of one stream.
class Pushes {
 public:
  using Messages = std::vector<v1::ExchangeRequest>;

  // `dims`: of each table; outlives this.
  explicit Pushes(const std::vector<uint32_t>* dims) : dims_(*dims) {}

  // The stream's next message. Returns the messages of a push that is whole with it, without its pull, which
  // changes nothing; else none.
  Messages Take(ByteBuffer bytes);

 private:
  struct Push {
    Messages messages;
    uint64_t row_bytes = 0;  // of the push
    uint64_t left = 0;       // bytes that are still to come
  };

  const std::vector<uint32_t>& dims_;
  std::map<uint64_t, Push> open_;  // by exchange
};

Pushes::Messages Pushes::Take(ByteBuffer bytes) {
  v1::ExchangeRequest message;
  if (!grpc::SerializationTraits<v1::ExchangeRequest>::Deserialize(&bytes, &message).ok()) std::abort();
  if (message.has_push() && message.push().refused().empty()) {
    const v1::PushRequest& header = message.push();
    const absl::StatusOr<RowLayout> rows = RowLayout::OfRequest(header.rows(), header.dtype(), {}, dims_);
    if (!rows.ok()) std::abort();
    Push& push = open_[message.id()];
    push.row_bytes = rows->bytes();
    push.left = rows->bytes() + EncodedBytes(TypeOf(header), header.elements());
    message.clear_pull();
  }
  const auto push = open_.find(message.id());
  if (push == open_.end()) return {};
  // Behind the rows of the push come the keys of its pull.
  const uint64_t row_bytes = push->second.row_bytes;
  if (message.rows() && message.first() + message.gradient().size() > row_bytes) {
    message.mutable_gradient()->resize(row_bytes - std::min(row_bytes, message.first()));
    if (message.gradient().empty()) message.set_rows(false);
  }
  message.clear_released();
  push->second.left -= message.gradient().size();
  if (message.has_push() || !message.gradient().empty()) {
    push->second.messages.push_back(std::move(message));
  }
  if (push->second.left > 0) return {};
  Messages whole = std::move(push->second.messages);
  open_.erase(push);
  return whole;
}

class RepeaterImpl final : public GrpcRepeater {
 public:
  RepeaterImpl(const std::string& server_address, uint64_t seed, std::vector<uint32_t> dims);
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
  // What gets the messages of a call.
  GrpcForwarder::OnRequest ReceiverOf(const std::string& method);
  // Runs `forward` at once or later, and may run `repeat`, if there is one, too.
  void Receive(std::function<void()> repeat, std::function<void()> forward);
  void RepeatPush(const Pushes::Messages& messages);
  void RepeatUnary(const std::string& method, const ByteBuffer& message);
  void At(Clock::time_point when, std::function<void()> what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunTimers();

  const std::vector<uint32_t> dims_;
  mutable Mutex mutex_;
  CondVar changed_;
  RandomStream random_ ABSL_GUARDED_BY(mutex_);
  Counts counts_ ABSL_GUARDED_BY(mutex_);
  std::vector<RepeatedPush> pushes_ ABSL_GUARDED_BY(mutex_);
  std::multimap<Clock::time_point, std::function<void()>> timers_ ABSL_GUARDED_BY(mutex_);
  int unary_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> pushing_;  // only the timers' thread uses them until it has ended
  std::thread timer_thread_;
  // Calls ReceiverOf().
  std::unique_ptr<GrpcForwarder> forwarder_;
  // To the server behind it.
  std::unique_ptr<grpc::GenericStub> stub_;
  std::unique_ptr<v1::ParameterServer::Stub> shard_;
};

RepeaterImpl::RepeaterImpl(const std::string& server_address, uint64_t seed, std::vector<uint32_t> dims)
    : dims_(std::move(dims)), random_(RandomKey(seed, "repeater"), 0) {
  GrpcForwarder::Options options;
  options.server = server_address;
  options.on_call = [this](const std::string& method) { return ReceiverOf(method); };
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
  for (std::thread& push : pushing_) push.join();
  MutexLock lock(mutex_);
  while (unary_calls_ > 0) changed_.Wait(mutex_);
}

GrpcForwarder::OnRequest RepeaterImpl::ReceiverOf(const std::string& method) {
  if (!absl::EndsWith(method, "/Exchange")) {
    return [this, method](const ByteBuffer* message, std::function<void()> forward) {
      Receive([this, method, copy = *message] { RepeatUnary(method, copy); }, std::move(forward));
    };
  }
  return [this, pushes = std::make_shared<Pushes>(&dims_)](const ByteBuffer* message,
                                                           std::function<void()> forward) {
    Pushes::Messages whole = pushes->Take(*message);
    std::function<void()> repeat;
    if (!whole.empty()) {
      repeat = [this, copy = std::make_shared<const Pushes::Messages>(std::move(whole))] {
        pushing_.emplace_back([this, copy] { RepeatPush(*copy); });
      };
    }
    Receive(std::move(repeat), std::move(forward));
  };
}

void RepeaterImpl::Receive(std::function<void()> repeat, std::function<void()> forward) {
  {
    MutexLock lock(mutex_);
    const Clock::time_point now = Clock::now();
    if (repeat != nullptr && random_.NextBelow(kRepeatOneOf) == 0) {
      const uint32_t late = random_.NextBelow(2) == 0 ? 0 : random_.NextBelow(kMostLateMs);
      At(now + milliseconds(late), std::move(repeat));
    }
    if (random_.NextBelow(kDelayOneOf) == 0) {
      ++counts_.delayed;
      return At(now + milliseconds(random_.NextBelow(kMostDelayMs)), std::move(forward));
    }
  }
  forward();
}

void RepeaterImpl::RepeatPush(const Pushes::Messages& messages) {
  RawStream stream(*shard_);
  const ExchangeResult result = stream.Run(messages);
  // A stream that is cancelled tells ps:0 that the worker's connection broke, which is a different fault from
  // this.
  stream.WritesDone();
  stream.End().IgnoreError();
  const v1::PushRequest& push = messages[0].push();
  MutexLock lock(mutex_);
  ++counts_.pushes;
  counts_.with_rows += !push.rows().empty();
  if (!result.push.has_value() || result.push->outcome() != v1::OK) return;
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

std::unique_ptr<GrpcRepeater> GrpcRepeater::Start(const std::string& server_address, uint64_t seed,
                                                  std::vector<uint32_t> dims) {
  return std::make_unique<RepeaterImpl>(server_address, seed, std::move(dims));
}

}  // namespace weir
