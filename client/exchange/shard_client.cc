#include "client/exchange/shard_client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/job_failure.h"

namespace weir {

// A call to a shard: as many exchanges as it takes, one after another, under the same key.
//
// The call begins on the caller's thread; everything else happens on the event loop.
class ShardClient::ShardCall final : public Call, public std::enable_shared_from_this<ShardCall> {
 public:
  ShardCall(ShardClient& shard, std::string what, std::optional<ShardPush> push,
            std::optional<ShardPull> pull, std::shared_ptr<const RowRoutes> rows, Done done)
      : shard_(shard),
        gradient_(push.has_value() ? push->gradient : nullptr),
        exchange_(std::make_shared<ShardExchange>(
            shard.shared_.tensors, shard.index_,
            push.has_value() && push->header.initial_values() ? shard.shared_.wire.Exact()
                                                              : shard.shared_.wire,
            what, std::move(push), std::move(pull), shard.answered_clock_, std::move(rows))),
        done_(std::move(done)),
        retry_(std::move(what), shard.name(), shard.shared_.limits, shard.shared_.loop.awake(),
               shard.shared_.loop.real(), [&loop = shard.shared_.loop] { return loop.Random(); }) {}

  void Start() {
    if (absl::Status closed = shard_.shared_.group.Add(this); !closed.ok()) {
      {
        MutexLock lock(mutex_);
        over_ = true;  // done_() may cancel this call
      }
      done_(closed);
      return;
    }
    MutexLock lock(mutex_);
    // The group may have been closed since then, which ended the call.
    if (over_) return;
    AwaitDeadline();
    if (gradient_ != nullptr) {
      gradient_->SetListener(shard_.index_, [call = weak_from_this(), &loop = shard_.shared_.loop] {
        loop.Post([call] {
          if (const std::shared_ptr<ShardCall> self = call.lock()) self->OnGradient();
        });
      });
    }
    Begin();
  }

  void Cancel(const absl::Status& why) override {
    shard_.shared_.loop.Post([self = shared_from_this(), why] { self->Interrupt([&] { return why; }); });
  }

 private:
  void Begin() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    retry_.TryStarts();
    stream_ = shard_.Begin(exchange_, [self = shared_from_this()](const auto& how) { self->OnEnded(how); });
  }

  void AwaitDeadline() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    deadline_ =
        shard_.shared_.loop.RunAfter(retry_.left(), [self = shared_from_this()] { self->OnDeadline(); });
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

  // Called when a chunk may be able to leave, and when the gradient has failed or is refused.
  void OnGradient() {
    const absl::Status failure = gradient_->failure();
    if (!failure.ok()) return Interrupt([&] { return failure; });
    MutexLock lock(mutex_);
    // Null: the call is over, or its next try will see what has changed.
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
      shard_.shared_.loop.Cancel(pause_);
      if (stream_ != nullptr) stream_->Abandon(*exchange_);
      stream_ = nullptr;
      error = why();
    }
    End(error);
  }

  void OnEnded(const absl::StatusOr<ShardExchange::Progress>& how) {
    absl::Status error;
    {
      MutexLock lock(mutex_);
      stream_.reset();
      if (how.ok() && *how == ShardExchange::Progress::kAgain) {
        Begin();
        return;
      }
      if (how.ok()) shard_.reached_ = true;
      if (!how.ok()) {
        const CallRetry::Verdict verdict = retry_.Judge(shard_.Misdirected(how.status()));
        error = verdict.error;
        if (error.ok()) {
          pause_ = shard_.shared_.loop.RunAfter(verdict.wait, [self = shared_from_this()] {
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

  // The caller may free its tensors when the call has ended, so the call ends only after the channel has let
  // go of them. The channel nearly always has, unless the call was interrupted.
  void End(const absl::Status& status) {
    if (!exchange_->loans().out()) return Finish(status);
    exchange_->loans().WhenReturned([self = shared_from_this(), status] {
      self->shard_.shared_.loop.Post([self, status] { self->Finish(status); });
    });
  }

  void Finish(const absl::Status& status) {
    const std::shared_ptr<ShardCall> self = shared_from_this();
    shard_.shared_.loop.Cancel(deadline_);
    if (gradient_ != nullptr) gradient_->RemoveListener(shard_.index_);
    if (status.ok()) {
      done_(exchange_->TakeAnswer());
    } else {
      done_(status);
    }
    shard_.shared_.group.Remove(this);
  }

  ShardClient& shard_;
  // Null: the call has no push.
  const std::shared_ptr<OutgoingGradient> gradient_;
  const std::shared_ptr<ShardExchange> exchange_;
  const Done done_;

  // Needed for the first exchange, which may end before its Begin() has returned.
  Mutex mutex_;
  CallRetry retry_ ABSL_GUARDED_BY(mutex_);
  // The stream of the open exchange; null: the call waits for its next try.
  std::shared_ptr<ExchangeStream> stream_ ABSL_GUARDED_BY(mutex_);
  EventLoop::Timer deadline_, pause_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
};

ShardClient::ShardClient(uint32_t index, std::unique_ptr<ShardChannel> channel, const Shared& shared)
    : index_(index), channel_(std::move(channel)), shared_(shared), reached_(shared.again) {}

absl::Status ShardClient::Misdirected(const absl::Status& status) const {
  if (!absl::IsNotFound(status)) return status;
  if (reached_) return LostPeer(absl::StrCat("another server is there now: ", status.message()));
  return Misfit(absl::StrCat("the call has reached another server: ", status.message()));
}

v1::Caller ShardClient::CallerNow() const {
  v1::Caller now = shared_.caller;
  now.set_epoch(shared_.epoch.load());
  now.set_shard_plus_one(index_ + 1);
  return now;
}

std::shared_ptr<ExchangeStream> ShardClient::Begin(const std::shared_ptr<ShardExchange>& exchange,
                                                   const ExchangeStream::Ended& ended) {
  MutexLock lock(mutex_);
  while (stream_ == nullptr || !stream_->Add(exchange, ended)) {
    ++streams_;
    stream_ = std::make_shared<ExchangeStream>(shared_.loop, [this] { return CallerNow(); });
    stream_->Start(*channel_, [this] {
      MutexLock lock(mutex_);
      if (--streams_ > 0) return;
      // The stream may keep bytes of its messages for as long as it exists.
      stream_ = nullptr;
      // Under the lock: the waiter may destroy this object as soon as it sees that no stream is left.
      stream_gone_.NotifyAll();
    });
  }
  return stream_;
}

void ShardClient::MoveTo(const std::string& address) {
  MutexLock lock(mutex_);
  if (channel_->MoveTo(address) && stream_ != nullptr) stream_->Reopen();
}

std::shared_ptr<Call> ShardClient::Exchange(std::optional<ShardPush> push, std::optional<ShardPull> pull,
                                            std::shared_ptr<const RowRoutes> rows, Done done) {
  std::string what;
  if (push.has_value() && push->header.initial_values()) {
    what = "the upload of the initial values";
  } else if (push.has_value()) {
    what = absl::StrCat("the push at clock ", push->header.clock());
  } else if (pull->request.pin() != 0) {
    what = absl::StrCat("the pull of pin ", pull->request.pin());
  } else {
    what = absl::StrCat("the pull at clock ", pull->request.clock());
  }
  auto call = std::make_shared<ShardCall>(*this, std::move(what), std::move(push), std::move(pull),
                                          std::move(rows), std::move(done));
  call->Start();
  return call;
}

void ShardClient::Close() {
  MutexLock lock(mutex_);
  if (stream_ != nullptr) stream_->Cancel();
  while (streams_ > 0) stream_gone_.Wait(mutex_);
}

}  // namespace weir
