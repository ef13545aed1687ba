#include "client/job/heartbeat.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/call.h"
#include "common/protocol/job_failure.h"
#include "common/system/clock.h"

namespace weir {

// All times are awake times: silence while this process was stopped says nothing about ps:0. All but Start(),
// Stop() and Cancel() runs on the event loop.
class Heartbeat::Beats final : public Call, public std::enable_shared_from_this<Beats> {
 public:
  Beats(CoordinatorChannel& channel, EventLoop& loop, Options options)
      : channel_(channel),
        loop_(loop),
        options_(std::move(options)),
        lease_(absl::FromChrono(options_.lease)),
        server_wait_(absl::FromChrono(options_.server_wait)),
        backoff_(std::chrono::milliseconds(50), std::chrono::milliseconds(500),
                 [&loop] { return loop.Random(); }) {}

  void Start() {
    group_.Add(this).IgnoreError();
    loop_.Post([self = shared_from_this()] { self->Beat(); });
  }
  void Stop() {
    group_.Close(absl::CancelledError("the heartbeat is stopped"));
    group_.WaitUntilEmpty();
  }
  void Cancel(const absl::Status& /*why*/) override {
    loop_.Post([self = shared_from_this()] {
      if (std::exchange(self->stopped_, true) || self->over_) return;
      if (self->try_ != nullptr) return self->try_->Cancel();
      self->CancelTimer();
      self->End();
    });
  }

 private:
  void Beat() {
    timer_.reset();
    if (over_) return;
    started_ = loop_.awake().Now();
    stretch_.emplace(loop_.awake(), loop_.real());
    late_ = false;
    try_ = channel_.Start(options_.request(), std::chrono::nanoseconds::max(),
                          [self = shared_from_this()](absl::StatusOr<v1::HeartbeatReply> reply) {
                            self->OnAnswer(std::move(reply));
                          });
    Watch();
  }

  // Ends the try when its time is over. The channel's own limit would run on while this process is stopped.
  void Watch() {
    const absl::Duration left = started_ + lease_ - loop_.awake().Now();
    timer_ = loop_.RunAfter(absl::ToChronoNanoseconds(std::max(left, absl::ZeroDuration())),
                            [self = shared_from_this()] {
                              self->timer_.reset();
                              if (self->try_ == nullptr) return;
                              if (self->loop_.awake().Now() < self->started_ + self->lease_)
                                return self->Watch();
                              self->late_ = true;
                              self->try_->Cancel();
                            });
  }

  void OnAnswer(absl::StatusOr<v1::HeartbeatReply> reply) {
    try_ = nullptr;
    CancelTimer();
    if (stopped_) return End();
    if (reply.ok()) {
      unreachable_since_ = absl::InfiniteFuture();
      backoff_.Reset();
      return options_.on_reply(*reply) ? Beat() : End();
    }
    absl::Status status = reply.status();
    if (late_) {
      status = absl::DeadlineExceededError(
          absl::StrCat("a heartbeat was not answered within ", absl::FormatDuration(lease_)));
    }
    if (absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status)) {
      options_.on_lost(Reworded(status, absl::StrCat(channel_.name(), ": ", status.message())));
      return End();
    }
    const absl::Time now = loop_.awake().Now();
    // A coordinator that hangs has been away since its answer was due.
    unreachable_since_ =
        std::min(unreachable_since_, absl::IsDeadlineExceeded(status) ? started_ + lease_ / 3 : now);
    const absl::Time give_up = unreachable_since_ + server_wait_;
    if (now >= give_up && !stretch_->interrupted()) {
      options_.on_lost(
          absl::UnavailableError(absl::StrCat(channel_.name(), " was lost: ", status.message())));
      return End();
    }
    absl::Duration wait = absl::FromChrono(backoff_.Next());
    // A timer counts whole nanoseconds.
    if (now < give_up) wait = std::min(wait, absl::Ceil(give_up - now, absl::Nanoseconds(1)));
    timer_ = loop_.RunAfter(absl::ToChronoNanoseconds(wait), [self = shared_from_this()] { self->Beat(); });
  }

  void CancelTimer() {
    if (timer_.has_value()) loop_.Cancel(*std::exchange(timer_, std::nullopt));
  }

  void End() {
    if (!std::exchange(over_, true)) group_.Remove(this);
  }

  CoordinatorChannel& channel_;
  EventLoop& loop_;
  const Options options_;
  const absl::Duration lease_, server_wait_;
  // Holds this call alone.
  CallGroup group_;
  Backoff backoff_;
  bool stopped_ = false, over_ = false;
  // InfiniteFuture(): the coordinator is not unreachable.
  absl::Time unreachable_since_ = absl::InfiniteFuture();
  // The try in flight, or else the newest.
  CoordinatorChannel::TryPtr try_;
  absl::Time started_;
  std::optional<Stretch> stretch_;
  bool late_ = false;
  // Watches the try, or starts the next one.
  std::optional<EventLoop::Timer> timer_;
};

Heartbeat::Heartbeat(CoordinatorChannel& channel, EventLoop& loop, Options options)
    : beats_(std::make_shared<Beats>(channel, loop, std::move(options))) {
  beats_->Start();
}
Heartbeat::~Heartbeat() { Stop(); }
void Heartbeat::Stop() { beats_->Stop(); }

}  // namespace weir
