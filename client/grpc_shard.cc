#include "client/grpc_shard.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/call_retry.h"
#include "client/grpc_channel.h"
#include "client/grpc_exchange.h"
#include "client/grpc_exchange_stream.h"
#include "client/shared_memory_link.h"
#include "client/wire_options.h"
#include "common/config/address.h"
#include "common/local_host.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "common/telemetry/logging.h"
#include "grpcpp/generic/generic_stub.h"

namespace weir {

namespace {

// For setting up shared memory with a server of this host; it holds up a new stream.
constexpr std::chrono::milliseconds kLinkLimit{500};

}  // namespace

struct GrpcShard::Impl {
  const uint32_t index;
  const JobToken token;
  GrpcPoller& poller;
  const TensorMap& tensors;
  const v1::Caller caller;
  const std::atomic<uint64_t>& epoch;
  const v1::WireConfig wire;
  CallGroup& group;
  const CallLimits limits;
  // All pushes with lower clocks were answered, in one life of the shard or another.
  std::atomic<uint64_t> answered_clock = 0;

  Mutex mutex = {};
  CondVar stream_gone = {};
  // Where it is while it has not moved, and where it is now.
  std::string home ABSL_GUARDED_BY(mutex) = {}, address ABSL_GUARDED_BY(mutex) = {};
  // To the address; null: is to be made.
  std::shared_ptr<grpc::Channel> channel ABSL_GUARDED_BY(mutex) = nullptr;
  // Of bytes, not of messages: tensors travel in slices of their own memory.
  std::unique_ptr<grpc::GenericStub> stub ABSL_GUARDED_BY(mutex) = nullptr;
  // The newest; null if all are gone.
  std::shared_ptr<GrpcExchangeStream> stream ABSL_GUARDED_BY(mutex) = nullptr;
  // Those that still have operations under way.
  int streams ABSL_GUARDED_BY(mutex) = 0;

  v1::Caller CallerNow() const {
    v1::Caller now = caller;
    now.set_epoch(epoch.load());
    return now;
  }

  std::string NameOf(const std::string& at) const { return absl::StrCat("ps:", index, " at ", at); }
  std::string Name() {
    MutexLock lock(mutex);
    return NameOf(address);
  }

  // Of the shard's weights.
  int64_t Bytes() const {
    return tensors.partition().shard_elements(index) * static_cast<int64_t>(sizeof(float));
  }

  void SetChannel(std::shared_ptr<grpc::Channel> made) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    channel = std::move(made);
    stub = std::make_unique<grpc::GenericStub>(channel);
  }

  // Begins the exchange on the current stream, or on a new one where that is over. Returns which.
  std::shared_ptr<GrpcExchangeStream> Begin(const std::shared_ptr<GrpcExchange>& exchange,
                                            const GrpcExchangeStream::Ended& ended) {
    MutexLock lock(mutex);
    while (stream == nullptr || !stream->Add(exchange, ended)) {
      // A name may stand for another machine by now, and only for this one's servers there are Unix sockets.
      if (channel == nullptr || channel->GetState(false) != GRPC_CHANNEL_READY) {
        const auto made = MakeDataChannel(address, limits.unreachable, std::nullopt, wire, Bytes());
        // That another one could be made before speaks against an error.
        if (!made.ok()) LogWarning(NameOf(address), ": ", made.status().message());
        SetChannel(made.ok() ? *made : MakeChannel(address, limits.unreachable));
      }
      ++streams;
      stream = std::make_shared<GrpcExchangeStream>(
          poller, [this] { return CallerNow(); },
          [this] {
            MutexLock lock(mutex);
            if (--streams > 0) return;
            // gRPC may have kept slices of its messages for as long as it is there.
            stream = nullptr;
            // Under the lock: the waiter may destroy this as soon as it sees it.
            stream_gone.NotifyAll();
          });
      stream->Start(*stub, token, Link(),
                    [this, name = NameOf(address)] { NoSharedMemory(name, "the server has none to give"); });
    }
    return stream;
  }

  // Shared memory for a new stream; null where it is not wanted or cannot be had.
  std::unique_ptr<SharedMemoryLink> Link() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (!WireOptions::From(wire).shared_memory) return nullptr;
    const absl::StatusOr<Address> server = ParseAddress(address);
    if (!server.ok() || !IsThisHost(*server)) {
      NoSharedMemory(NameOf(address), "it is on another host");
      return nullptr;
    }
    // No chunk is larger than what the shard has: workers of a small model take little memory.
    constexpr uint64_t kLine = 64;
    const uint64_t slot_bytes =
        std::min(uint64_t{wire.chunk_kib()} << 10, (static_cast<uint64_t>(Bytes()) / kLine + 1) * kLine);
    absl::StatusOr<std::unique_ptr<SharedMemoryLink>> link = SharedMemoryLink::Connect(
        *server, wire.chunks_in_flight(), slot_bytes, std::chrono::steady_clock::now() + kLinkLimit);
    if (!link.ok()) {
      NoSharedMemory(NameOf(address), link.status().message());
      return nullptr;
    }
    return *std::move(link);
  }

  void NoSharedMemory(const std::string& name, absl::string_view why) const {
    if (wire.transport() == v1::WireConfig::TRANSPORT_SHARED_MEMORY) {
      LogWarning("no shared memory with ", name, ", chunks travel over its socket: ", std::string(why));
    }
  }

  void Close() {
    MutexLock lock(mutex);
    if (stream != nullptr) stream->Cancel();
    while (streams > 0) stream_gone.Wait(mutex);
  }
};

namespace {

// A call to a shard: as many exchanges as it takes, one after another, under the same key.
//
// Begins on the caller's thread; all that follows happens on the polling thread.
class ShardCall final : public Call, public std::enable_shared_from_this<ShardCall> {
 public:
  ShardCall(GrpcShard::Impl& shard, std::string what, std::optional<ShardPush> push,
            std::optional<ShardPull> pull, GrpcShard::Done done)
      : shard_(shard),
        gradient_(push.has_value() ? push->gradient : nullptr),
        exchange_(std::make_shared<GrpcExchange>(shard.tensors, shard.index, WireOptions::From(shard.wire),
                                                 what, std::move(push), std::move(pull),
                                                 shard.answered_clock)),
        done_(std::move(done)),
        retry_(std::move(what), shard.Name(), shard.limits) {}

  void Start() {
    if (absl::Status closed = shard_.group.Add(this); !closed.ok()) {
      {
        MutexLock lock(mutex_);
        over_ = true;  // whoever is told so may cancel it
      }
      done_(closed);
      return;
    }
    MutexLock lock(mutex_);
    // The group may have been closed since, and the call have ended.
    if (over_) return;
    AwaitDeadline();
    if (gradient_ != nullptr) {
      gradient_->SetListener(shard_.index, [call = weak_from_this(), &poller = shard_.poller] {
        poller.RunSoon([call] {
          if (const std::shared_ptr<ShardCall> self = call.lock()) self->OnGradient();
        });
      });
    }
    Begin();
  }

  void Cancel(const absl::Status& why) override {
    shard_.poller.RunSoon([self = shared_from_this(), why] { self->Interrupt([&] { return why; }); });
  }

 private:
  void Begin() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    retry_.TryStarts();
    stream_ = shard_.Begin(exchange_, [self = shared_from_this()](const auto& how) { self->OnEnded(how); });
  }

  void AwaitDeadline() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    deadline_ = shard_.poller.RunAt(GrpcPoller::Clock::now() + retry_.left(),
                                    [self = shared_from_this()] { self->OnDeadline(); });
  }

  void OnDeadline() {
    {
      MutexLock lock(mutex_);
      if (over_) return;
      // This process was stopped meanwhile.
      if (retry_.left() > std::chrono::nanoseconds::zero()) return AwaitDeadline();
    }
    // Runs under the lock.
    Interrupt([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return Late(); });
  }

  // There is news of the gradient.
  void OnGradient() {
    const absl::Status failure = gradient_->failure();
    if (!failure.ok()) return Interrupt([&] { return failure; });
    MutexLock lock(mutex_);
    // Null: it is over, or its next try will say what there is to say.
    if (stream_ == nullptr) return;
    if (!exchange_->outdated()) return stream_->Continue();
    stream_->Abandon(*exchange_);
    Begin();
  }

  absl::Status Late() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const size_t awaited = gradient_ == nullptr ? 0 : gradient_->awaited();
    if (awaited == 0) return retry_.Late();
    return absl::DeadlineExceededError(
        absl::StrCat(retry_.what(), " could not be sent within ", retry_.seconds(), " s: ", awaited, " of ",
                     gradient_->tensors().begin.size(), " tensors of its gradient were never Ready()"));
  }

  // Ends the call from outside, unless it has ended by itself.
  template <typename Why>
  void Interrupt(const Why& why) {
    absl::Status error;
    {
      MutexLock lock(mutex_);
      if (over_) return;
      over_ = true;
      shard_.poller.Cancel(pause_);
      if (stream_ != nullptr) stream_->Abandon(*exchange_);
      stream_ = nullptr;
      error = why();
    }
    End(error);
  }

  void OnEnded(const absl::StatusOr<GrpcExchange::Progress>& how) {
    absl::Status error;
    {
      MutexLock lock(mutex_);
      stream_.reset();
      if (how.ok() && *how == GrpcExchange::Progress::kAgain) {
        Begin();
        return;
      }
      if (!how.ok()) {
        const CallRetry::Verdict verdict = retry_.Judge(how.status());
        error = verdict.error;
        if (error.ok()) {
          pause_ = shard_.poller.RunAt(GrpcPoller::Clock::now() + verdict.wait, [self = shared_from_this()] {
            MutexLock lock(self->mutex_);
            self->Begin();
          });
          return;
        }
      }
      over_ = true;
    }
    End(error);
  }

  // The caller may free its tensors when the call has ended: not before gRPC has let go of them, which it
  // nearly always has, unless the call was interrupted.
  void End(const absl::Status& status) {
    if (!exchange_->loans().out()) return Finish(status);
    exchange_->loans().WhenReturned([self = shared_from_this(), status] {
      self->shard_.poller.RunSoon([self, status] { self->Finish(status); });
    });
  }

  void Finish(const absl::Status& status) {
    const std::shared_ptr<ShardCall> self = shared_from_this();
    shard_.poller.Cancel(deadline_);
    if (status.ok()) {
      done_(exchange_->TakeAnswer());
    } else {
      done_(status);
    }
    shard_.group.Remove(this);
  }

  GrpcShard::Impl& shard_;
  // Null: it is no push.
  const std::shared_ptr<OutgoingGradient> gradient_;
  const std::shared_ptr<GrpcExchange> exchange_;
  const GrpcShard::Done done_;

  // For the first exchange, which may end before its Begin() has returned.
  Mutex mutex_;
  CallRetry retry_ ABSL_GUARDED_BY(mutex_);
  // Of the exchange that is open; null: the call waits for its next try.
  std::shared_ptr<GrpcExchangeStream> stream_ ABSL_GUARDED_BY(mutex_);
  GrpcPoller::Timer deadline_, pause_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

GrpcShard::GrpcShard(uint32_t index, std::string address, const JobToken& token, GrpcPoller& poller,
                     const TensorMap& tensors, const v1::Caller& caller, const std::atomic<uint64_t>& epoch,
                     const v1::WireConfig& wire, CallGroup& group, const CallLimits& limits)
    : impl_(new Impl{index, token, poller, tensors, caller, epoch, wire, group, limits}) {
  MutexLock lock(impl_->mutex);
  impl_->home = impl_->address = std::move(address);
}

GrpcShard::~GrpcShard() { Close(); }

void GrpcShard::Close() { impl_->Close(); }

uint64_t GrpcShard::answered_clock() const { return impl_->answered_clock; }

std::string GrpcShard::name() const { return impl_->Name(); }

absl::Status GrpcShard::Connect(std::chrono::steady_clock::time_point deadline,
                                const std::string& otherwise) {
  const std::string missing = name();
  std::chrono::nanoseconds attempt = kFirstAttempt;
  for (bool own = true;;
       own = !own, attempt = std::min<std::chrono::nanoseconds>(2 * attempt, kLongestAttempt)) {
    std::string at;
    {
      MutexLock lock(impl_->mutex);
      const bool moved = impl_->address != impl_->home;
      at = own || moved || otherwise.empty() ? impl_->address : otherwise;
    }
    WEIR_ASSIGN_OR_RETURN(
        const std::shared_ptr<grpc::Channel> channel,
        MakeDataChannel(at, impl_->limits.unreachable, attempt, impl_->wire, impl_->Bytes()));
    // Each on a fresh channel: gRPC would ask for a name that does not resolve yet more and more seldom.
    const auto left = deadline - std::chrono::steady_clock::now();
    const auto slice = std::min<std::chrono::nanoseconds>(left, attempt);
    if (channel->WaitForConnected(std::chrono::system_clock::now() + slice)) {
      MutexLock lock(impl_->mutex);
      if (impl_->address == impl_->home) impl_->home = impl_->address = at;
      if (impl_->address == at) impl_->SetChannel(channel);
      return absl::OkStatus();
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return absl::UnavailableError(absl::StrCat(missing, " could not be reached"));
    }
  }
}

void GrpcShard::MoveTo(const std::string& address) {
  MutexLock lock(impl_->mutex);
  const std::string& to = address.empty() ? impl_->home : address;
  if (to == impl_->address) return;
  LogInfo("ps:", impl_->index, " is at ", to, " now, and not at ", impl_->address);
  impl_->address = to;
  impl_->channel = nullptr;
  if (impl_->stream != nullptr) impl_->stream->Reopen();
}

std::shared_ptr<Call> GrpcShard::Exchange(std::optional<Push> push, std::optional<Pull> pull, Done done) {
  std::string what;
  if (push.has_value()) {
    what = absl::StrCat("the push at clock ", push->header.clock());
  } else if (pull->request.pin() != 0) {
    what = absl::StrCat("the pull of pin ", pull->request.pin());
  } else {
    what = absl::StrCat("the pull at clock ", pull->request.clock());
  }
  auto call =
      std::make_shared<ShardCall>(*impl_, std::move(what), std::move(push), std::move(pull), std::move(done));
  call->Start();
  return call;
}

}  // namespace weir
