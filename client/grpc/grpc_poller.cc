#include "client/grpc/grpc_poller.h"

#include <algorithm>
#include <map>
#include <thread>

#include "client/call.h"
#include "common/base/status_macros.h"
#include "common/rpc/grpc_completion_loop.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "grpcpp/completion_queue.h"

namespace weir {
namespace {

// A polling thread looks at the timers at least this often, so that setting a later timer, such as a call's
// deadline, need not wake the thread.
constexpr std::chrono::seconds kLongestSleep(1);
// For this long after a waiting thread has polled, the poller's own thread leaves the polling to the next
// waiter. So it need not be moved out of the way when results are waited for one right after another. The
// time doubles whenever the own thread had to go before any event came, up to the second, and begins anew
// when one came. The second is short: a computation that is over by then gets no messages meanwhile.
constexpr std::chrono::milliseconds kLeaveToWaiters(1), kLeaveAtMost(4);

}  // namespace

struct GrpcPoller::Impl final : ResultDriver {
  explicit Impl(std::chrono::microseconds busy_poll) : loop(&queue, busy_poll) {}

  // Runs the poller's own thread.
  void Run() ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Called by a thread that waits for a result.
  void WaitUntil(absl::FunctionRef<bool()> ready, absl::FunctionRef<void()> sleep,
                 Deadline deadline) override ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Called by the polling thread: runs the timers that are due; if there were none, handles the next event if
  // one comes before the next timer and the deadline, which GOT_EVENT says. SHUTDOWN: the queue is shut down
  // and empty. Releases the lock meanwhile.
  grpc::CompletionQueue::NextStatus Poll(Deadline deadline = Deadline::max()) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Returns whether a timer was due.
  bool RunTimers() ABSL_NO_THREAD_SAFETY_ANALYSIS;

  grpc::CompletionQueue queue;
  GrpcCompletionLoop loop;
  std::thread thread;

  std::map<Timer, absl::AnyInvocable<void()>> timers ABSL_GUARDED_BY(loop.mutex);
  // Null until they are asked for.
  std::shared_ptr<DoorbellPage> bells ABSL_GUARDED_BY(loop.mutex);
  uint64_t next_timer ABSL_GUARDED_BY(loop.mutex) = 0;
  // When the polling thread looks at the timers by itself, if it is asleep.
  Steady::time_point looks_at ABSL_GUARDED_BY(loop.mutex) = Steady::time_point::min();

  enum class Turn { kNobody, kOwnThread, kWaiter };
  // Which thread polls.
  Turn turn ABSL_GUARDED_BY(loop.mutex) = Turn::kNobody;
  // When a waiter last stopped polling, or was given the polling.
  Steady::time_point waiter_left ABSL_GUARDED_BY(loop.mutex) = Steady::time_point::min();
  // Waiters that want to take the polling from the own thread, and waiters that leave it to another thread.
  int claims ABSL_GUARDED_BY(loop.mutex) = 0;
  int sleepers ABSL_GUARDED_BY(loop.mutex) = 0;
  bool stopping ABSL_GUARDED_BY(loop.mutex) = false;
  // The own thread has given the polling up.
  CondVar given;
  // Wakes the own thread to look at the state above. `asleep`: the own thread does so only when woken.
  CondVar look;
  bool asleep ABSL_GUARDED_BY(loop.mutex) = false;
};

GrpcPoller::GrpcPoller(std::chrono::microseconds busy_poll) : impl_(std::make_shared<Impl>(busy_poll)) {}

absl::StatusOr<std::shared_ptr<GrpcPoller>> GrpcPoller::Start(std::chrono::microseconds busy_poll) {
  std::shared_ptr<GrpcPoller> poller(new GrpcPoller(busy_poll));
  WEIR_ASSIGN_OR_RETURN(poller->impl_->thread, MakeThread("poll for the servers' answers",
                                                          [to = poller->impl_.get()] { to->Run(); }));
  return poller;
}

GrpcPoller::~GrpcPoller() {
  if (!impl_->thread.joinable()) {
    {
      MutexLock lock(impl_->loop.mutex);
      impl_->stopping = true;
    }
    impl_->Run();  // empties the queue
    return;
  }
  {
    MutexLock lock(impl_->loop.mutex);
    impl_->stopping = true;
    impl_->look.NotifyAll();
    impl_->loop.Wake();
  }
  impl_->thread.join();
}

absl::StatusOr<std::shared_ptr<GrpcPoller>> GrpcPoller::Shared(std::chrono::microseconds busy_poll,
                                                               bool shared_work) {
  static Mutex mutex;
  static auto& pollers = *new std::map<std::pair<std::chrono::microseconds, bool>, std::weak_ptr<GrpcPoller>>;
  MutexLock lock(mutex);
  std::weak_ptr<GrpcPoller>& known = pollers[{busy_poll, shared_work}];
  std::shared_ptr<GrpcPoller> poller = known.lock();
  if (poller == nullptr) {
    WEIR_ASSIGN_OR_RETURN(poller, Start(busy_poll));
    known = poller;
  }
  return poller;
}

absl::StatusOr<std::shared_ptr<DoorbellPage>> GrpcPoller::bells() {
  MutexLock lock(impl_->loop.mutex);
  if (impl_->bells == nullptr) {
    WEIR_RETURN_IF_ERROR(impl_->loop.PrepareToAdd());
    WEIR_ASSIGN_OR_RETURN(impl_->bells, DoorbellPage::Create());
  }
  return impl_->bells;
}

void GrpcPoller::Add(SharedWork* work) {
  Doorbell* bell;
  {
    MutexLock lock(impl_->loop.mutex);
    bell = impl_->bells->Bell(kBell);
  }
  impl_->loop.Add(work, bell);
}

void GrpcPoller::Remove(SharedWork* work) { impl_->loop.Remove(work); }

grpc::CompletionQueue* GrpcPoller::queue() { return &impl_->queue; }

std::shared_ptr<ResultDriver> GrpcPoller::driver() { return impl_; }

GrpcPoller::Timer GrpcPoller::RunAt(Steady::time_point when, absl::AnyInvocable<void()> then) {
  MutexLock lock(impl_->loop.mutex);
  const Timer timer(when, impl_->next_timer++);
  impl_->timers.emplace(timer, std::move(then));
  if (when < impl_->looks_at) impl_->loop.Wake();
  return timer;
}

void GrpcPoller::RunAside(absl::AnyInvocable<void()> work, absl::AnyInvocable<void()> then) {
  struct Both {
    absl::AnyInvocable<void()> work, then;
  };
  const auto both = std::make_shared<Both>(Both{std::move(work), std::move(then)});
  // Once `then` is posted, it may be all that keeps what it uses; and it may be the last to use this poller.
  const auto run = [this, keep = impl_, both] {
    both->work();
    both->work = nullptr;
    Post(std::move(both->then));
  };
  absl::StatusOr<std::thread> thread = MakeThread("open a stream", run);
  if (!thread.ok()) return run();
  thread->detach();
}

void GrpcPoller::Cancel(const Timer& timer) {
  // Destroyed without the lock.
  absl::AnyInvocable<void()> then;
  MutexLock lock(impl_->loop.mutex);
  const auto found = impl_->timers.find(timer);
  if (found == impl_->timers.end()) return;
  then = std::move(found->second);
  impl_->timers.erase(found);
}

uint32_t GrpcPoller::Random() { return Backoff::AnyRandom(); }

bool GrpcPoller::Impl::RunTimers() {
  bool ran = false;
  while (!timers.empty() && timers.begin()->first.first <= Steady::now()) {
    ran = true;
    absl::AnyInvocable<void()> then = std::move(timers.begin()->second);
    timers.erase(timers.begin());
    loop.mutex.Unlock();
    then();
    then = nullptr;
    loop.mutex.Lock();
  }
  return ran;
}

grpc::CompletionQueue::NextStatus GrpcPoller::Impl::Poll(Deadline deadline) {
  if (RunTimers()) return grpc::CompletionQueue::TIMEOUT;
  const Steady::time_point now = Steady::now();
  looks_at = std::min(now + kLongestSleep, deadline);
  if (!timers.empty()) looks_at = std::min(looks_at, timers.begin()->first.first);
  return loop.HandleNext(looks_at);
}

void GrpcPoller::Impl::Run() {
  MutexLock lock(loop.mutex);
  std::chrono::milliseconds leave = kLeaveToWaiters;
  // The last turn of a waiter that has passed without this thread.
  Steady::time_point seen = Steady::time_point::min();
  while (true) {
    const Steady::time_point from = waiter_left + leave;
    if (turn == Turn::kWaiter && waiter_left > seen) {
      // Waits are short and follow one another: to look again later costs less than to be woken after each.
      seen = waiter_left;
      look.WaitUntil(loop.mutex, Steady::now() + kLeaveAtMost);
    } else if (turn == Turn::kWaiter) {
      asleep = true;
      look.Wait(loop.mutex);
      asleep = false;
    } else if (stopping) {
      break;
    } else if (Steady::now() < from && (claims > 0 || sleepers == 0)) {
      look.WaitUntil(loop.mutex, from);
    } else {
      turn = Turn::kOwnThread;
      bool useful = false;
      while (!stopping && claims == 0) {
        useful |= Poll() == grpc::CompletionQueue::GOT_EVENT && claims == 0;
      }
      turn = Turn::kNobody;
      if (useful) {
        leave = kLeaveToWaiters;
      } else if (claims > 0) {
        leave = std::min(2 * leave, kLeaveAtMost);
      }
      if (claims > 0) waiter_left = Steady::now();
      given.NotifyAll();
    }
  }
  turn = Turn::kOwnThread;
  queue.Shutdown();
  while (Poll() != grpc::CompletionQueue::SHUTDOWN) {
  }
}

void GrpcPoller::Impl::WaitUntil(absl::FunctionRef<bool()> ready, absl::FunctionRef<void()> sleep,
                                 Deadline deadline) {
  MutexLock lock(loop.mutex);
  ++claims;
  // If several threads wait, the polling would change hands with every result, so they leave it to the own
  // thread.
  while (turn == Turn::kOwnThread && sleepers == 0 && !stopping && !ready()) {
    loop.Wake();
    given.Wait(loop.mutex);
  }
  --claims;
  if (turn == Turn::kNobody) {
    turn = Turn::kWaiter;
    while (!stopping && !ready()) Poll(deadline);
    turn = Turn::kNobody;
    waiter_left = Steady::now();
    // Otherwise the own thread looks by itself soon enough.
    if (asleep || sleepers > 0) look.NotifyAll();
  } else if (!ready()) {
    ++sleepers;
    loop.mutex.Unlock();
    sleep();
    loop.mutex.Lock();
    --sleepers;
  }
}

}  // namespace weir
