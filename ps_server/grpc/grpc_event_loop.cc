#include "ps_server/grpc/grpc_event_loop.h"

#include <utility>

#include "common/base/status_macros.h"
#include "common/threads/thread.h"

namespace weir {

GrpcEventLoop::GrpcEventLoop(std::unique_ptr<grpc::ServerCompletionQueue> queue,
                             std::chrono::microseconds busy_poll)
    : queue_(std::move(queue)), loop_(queue_.get(), busy_poll) {}

GrpcEventLoop::~GrpcEventLoop() { Stop(); }

absl::Status GrpcEventLoop::Start(bool adds) {
  if (adds) WEIR_RETURN_IF_ERROR(loop_.PrepareToAdd());
  WEIR_ASSIGN_OR_RETURN(thread_, MakeThread("serve gRPC", [this] { Run(); }));
  return absl::OkStatus();
}

void GrpcEventLoop::Stop() {
  {
    MutexLock lock(loop_.mutex);
    if (stopped_) return;
  }
  // On the loop's thread, so that no operation is started on a queue that is shut down.
  Post([this] {
    stopping_ = true;
    queue_->Shutdown();
    MutexLock lock(loop_.mutex);
    stopped_ = true;
  });
  if (thread_.joinable()) {
    thread_.join();
  } else {
    Run();  // never started
  }
}

void GrpcEventLoop::Post(absl::AnyInvocable<void()> function) {
  MutexLock lock(loop_.mutex);
  if (stopped_) return;
  posted_.push_back(std::move(function));
  loop_.Wake();
}

void GrpcEventLoop::CallBegins() {
  MutexLock lock(loop_.mutex);
  ++open_calls_;
}

void GrpcEventLoop::CallEnds() {
  MutexLock lock(loop_.mutex);
  if (--open_calls_ == 0) calls_ended_.NotifyAll();
}

bool GrpcEventLoop::WaitUntilNoCalls(Steady::time_point deadline) {
  MutexLock lock(loop_.mutex);
  while (open_calls_ > 0) {
    if (!calls_ended_.WaitUntil(loop_.mutex, deadline) && Steady::now() >= deadline) break;
  }
  return open_calls_ == 0;
}

void GrpcEventLoop::StartOperationsLater(OperationStarter* starter) {
  if (starter->due_) return;
  starter->due_ = true;
  starters_.push_back(starter);
}

void GrpcEventLoop::AwaitRequest(RequestWaiter* waiter) {
  waiter->waits_ = true;
  waiter->due_ = Steady::now() + kRequestTime;
  waiter->place_ = waiters_.insert(waiters_.end(), waiter);
}

void GrpcEventLoop::RequestCame(RequestWaiter* waiter) {
  if (std::exchange(waiter->waits_, false)) waiters_.erase(waiter->place_);
}

void GrpcEventLoop::TellLate() {
  while (!waiters_.empty() && waiters_.front()->due_ <= Steady::now()) {
    RequestWaiter* const late = waiters_.front();
    RequestCame(late);
    loop_.mutex.Unlock();
    late->OnLate();
    loop_.mutex.Lock();
  }
}

void GrpcEventLoop::Run() {
  MutexLock lock(loop_.mutex);
  Steady::time_point until;
  do {
    TellLate();
    Work();
    until = waiters_.empty() ? Steady::time_point::max() : waiters_.front()->due_;
  } while (loop_.HandleNext(until) != grpc::CompletionQueue::SHUTDOWN);
}

void GrpcEventLoop::Work() {
  std::vector<absl::AnyInvocable<void()>> posted;
  while (true) {
    posted.swap(posted_);
    if (posted.empty() && starters_.empty()) return;
    loop_.mutex.Unlock();
    for (auto& function : posted) function();
    if (posted.empty()) {
      const std::vector<OperationStarter*> starters = std::exchange(starters_, {});
      for (OperationStarter* starter : starters) {
        starter->due_ = false;
        starter->StartOperations();
      }
    }
    posted.clear();
    loop_.mutex.Lock();
  }
}

}  // namespace weir
