#include "common/rpc/grpc_completion_loop.h"

#include <grpc/support/time.h>
#include <sched.h>

#include <algorithm>

#include "absl/status/statusor.h"
#include "common/threads/thread.h"

namespace weir {
namespace {

// A thread that waits for a doorbell looks at everything this often, whatever the ringers do.
constexpr std::chrono::seconds kLongestSleep(1);

gpr_timespec ToGrpc(std::chrono::steady_clock::time_point until) {
  using Steady = std::chrono::steady_clock;
  if (until == Steady::time_point::max()) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  const Steady::time_point now = Steady::now();
  // gRPC sleeps for a millisecond unless the deadline has been past for one.
  if (until <= now) return gpr_time_0(GPR_CLOCK_MONOTONIC);
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos((until - now).count(), GPR_TIMESPAN));
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

GrpcCompletionLoop::~GrpcCompletionLoop() {
  if (!passes_on_.joinable()) return;
  {
    MutexLock lock(mutex);
    ending_ = true;
    added_.NotifyAll();
  }
  passes_on_.join();
}

GrpcCompletionLoop::NextStatus GrpcCompletionLoop::Take(Event* event, Steady::time_point until) {
  if (busy_poll_.count() > 0) {
    const Steady::time_point sleeps = std::min(until, Steady::now() + busy_poll_);
    do {
      const NextStatus next = queue_->AsyncNext(&event->tag, &event->ok, gpr_time_0(GPR_CLOCK_MONOTONIC));
      if (next != NextStatus::TIMEOUT) return next;
    } while (Steady::now() < sleeps);
  }
  return queue_->AsyncNext(&event->tag, &event->ok, ToGrpc(until));
}

void GrpcCompletionLoop::Handle(const Event& event) {
  if (event.tag == &alarm_) {
    alarm_set_ = false;
    return;
  }
  mutex.Unlock();
  static_cast<GrpcEvent*>(event.tag)->OnEvent(event.ok);
  mutex.Lock();
}

GrpcCompletionLoop::NextStatus GrpcCompletionLoop::HandleNext(Steady::time_point until) {
  if (bell_.load(std::memory_order_relaxed) != nullptr) return HandleShared(until);
  Event event{};
  waits_ = true;
  mutex.Unlock();
  const NextStatus next = Take(&event, until);
  mutex.Lock();
  waits_ = false;
  if (next == NextStatus::GOT_EVENT) Handle(event);
  return next;
}

GrpcCompletionLoop::NextStatus GrpcCompletionLoop::HandleShared(Steady::time_point until) {
  std::vector<Event> passed;
  if (any_passed_.exchange(false)) passed.swap(passed_);
  if (!passed.empty()) {
    for (const Event& event : passed) Handle(event);
    return NextStatus::GOT_EVENT;
  }
  if (drained_) return NextStatus::SHUTDOWN;
  waits_ = true;
  mutex.Unlock();
  // Each look at all of the work costs time in proportion to it, so that the first look serves at once.
  bool got = ServeShared() || any_passed_ || woken_;
  if (!got) {
    WaitForShared(until);
    got = ServeShared() || any_passed_ || woken_;
  }
  mutex.Lock();
  waits_ = false;
  woken_ = false;
  return got ? NextStatus::GOT_EVENT : NextStatus::TIMEOUT;
}

void GrpcCompletionLoop::WaitForShared(Steady::time_point until) {
  Doorbell& bell = *bell_.load(std::memory_order_relaxed);
  const bool adapts = busy_poll_.count() == 0;
  const Steady::time_point began = Steady::now();
  Steady::time_point now = began;
  Steady::time_point sleeps = began + (adapts ? spin_.budget() : busy_poll_);
  while (!SomethingReady() && now < until) {
    if (now >= sleeps) {
      const uint32_t armed = bell.Arm();
      if (!SomethingReady()) bell.Sleep(armed, std::min(until, now + kLongestSleep));
      bell.Disarm();
    } else if (!adapts) {
      Pause();
    } else {
      sched_yield();
    }
    const Steady::time_point looked = std::exchange(now, Steady::now());
    if (adapts && looked < sleeps && now - looked >= AdaptiveSpin::kCoreWanted) {
      spin_.OnCoreWanted();
      sleeps = now;
    }
  }
  if (adapts) spin_.OnWaited(now - began);
}

bool GrpcCompletionLoop::SomethingReady() const {
  return any_passed_ || woken_ || std::any_of(shared_.begin(), shared_.end(), [](const SharedWork* work) {
           return work != nullptr && work->Ready();
         });
}

bool GrpcCompletionLoop::ServeShared() {
  bool served = false;
  serving_ = true;
  // Work that is added meanwhile has its turn, too.
  for (size_t i = 0; i < shared_.size(); ++i) {
    if (shared_[i] == nullptr || !shared_[i]->Ready()) continue;
    served = true;
    shared_[i]->Serve();
  }
  serving_ = false;
  if (served) shared_.erase(std::remove(shared_.begin(), shared_.end(), nullptr), shared_.end());
  return served;
}

void GrpcCompletionLoop::Wake() {
  if (!waits_) return;
  if (Doorbell* const bell = bell_.load(std::memory_order_relaxed)) {
    woken_ = true;
    bell->Ring();
    return;
  }
  if (alarm_set_) return;
  alarm_set_ = true;
  alarm_.Set(queue_, gpr_time_0(GPR_CLOCK_MONOTONIC), &alarm_);
}

absl::Status GrpcCompletionLoop::PrepareToAdd() {
  if (passes_on_.joinable()) return absl::OkStatus();
  absl::StatusOr<std::thread> made = MakeThread("take the events of gRPC", [this] { PassOn(); });
  if (!made.ok()) return made.status();
  passes_on_ = *std::move(made);
  return absl::OkStatus();
}

void GrpcCompletionLoop::Add(SharedWork* work, Doorbell* bell) {
  shared_.push_back(work);
  if (bell_.load(std::memory_order_relaxed) != nullptr) return;
  MutexLock lock(mutex);
  bell_ = bell;
  added_.NotifyAll();
}

void GrpcCompletionLoop::Remove(SharedWork* work) {
  std::replace(shared_.begin(), shared_.end(), work, static_cast<SharedWork*>(nullptr));
  if (!serving_) shared_.erase(std::remove(shared_.begin(), shared_.end(), nullptr), shared_.end());
}

void GrpcCompletionLoop::PassOn() {
  {
    MutexLock lock(mutex);
    while (bell_ == nullptr && !ending_) added_.Wait(mutex);
    if (bell_ == nullptr) return;
  }
  Event event{};
  bool more;
  do {
    more = queue_->Next(&event.tag, &event.ok);
    MutexLock lock(mutex);
    if (more) {
      passed_.push_back(event);
    } else {
      drained_ = true;
    }
    any_passed_ = true;
    bell_.load(std::memory_order_relaxed)->Ring();
  } while (more);
}

}  // namespace weir
