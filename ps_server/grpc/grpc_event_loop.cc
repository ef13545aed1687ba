#include "ps_server/grpc/grpc_event_loop.h"

#include <utility>

namespace weir {

GrpcEventLoop::GrpcEventLoop(std::unique_ptr<grpc::ServerCompletionQueue> queue,
                             std::chrono::microseconds busy_poll)
    : queue_(std::move(queue)), busy_poll_(busy_poll) {}

GrpcEventLoop::~GrpcEventLoop() { Stop(); }

void GrpcEventLoop::Start() {
  thread_ = std::thread([this] { Run(); });
}

void GrpcEventLoop::Stop() {
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
  }
  // On the loop's thread, so that no operation is started on a queue that is shut down.
  Post([this] {
    stopping_ = true;
    queue_->Shutdown();
    MutexLock lock(mutex_);
    stopped_ = true;
  });
  if (thread_.joinable()) {
    thread_.join();
  } else {
    Run();  // never started
  }
}

void GrpcEventLoop::Post(absl::AnyInvocable<void()> function) {
  MutexLock lock(mutex_);
  if (stopped_) return;
  posted_.push_back(std::move(function));
  if (awake_ || alarm_set_) return;
  alarm_set_ = true;
  alarm_.Set(queue_.get(), gpr_time_0(GPR_CLOCK_MONOTONIC), &alarm_);
}

void GrpcEventLoop::CallBegins() {
  MutexLock lock(mutex_);
  ++open_calls_;
}

void GrpcEventLoop::CallEnds() {
  MutexLock lock(mutex_);
  if (--open_calls_ == 0) calls_ended_.NotifyAll();
}

bool GrpcEventLoop::WaitUntilNoCalls(std::chrono::steady_clock::time_point deadline) {
  MutexLock lock(mutex_);
  while (open_calls_ > 0) {
    if (!calls_ended_.WaitUntil(mutex_, deadline) && std::chrono::steady_clock::now() >= deadline) break;
  }
  return open_calls_ == 0;
}

void GrpcEventLoop::StartOperationsLater(OperationStarter* starter) {
  if (starter->due_) return;
  starter->due_ = true;
  starters_.push_back(starter);
}

void GrpcEventLoop::Run() {
  void* tag = nullptr;
  bool ok = false;
  Work();
  while (Next(&tag, &ok)) {
    {
      MutexLock lock(mutex_);
      awake_ = true;
      if (tag == &alarm_) {
        alarm_set_ = false;
        tag = nullptr;
      }
    }
    if (tag != nullptr) static_cast<Event*>(tag)->Done(ok);
    Work();
  }
}

bool GrpcEventLoop::Next(void** tag, bool* ok) {
  if (busy_poll_.count() > 0) {
    const auto until = std::chrono::steady_clock::now() + busy_poll_;
    do {
      switch (queue_->AsyncNext(tag, ok, gpr_time_0(GPR_CLOCK_MONOTONIC))) {
        case grpc::CompletionQueue::GOT_EVENT:
          return true;
        case grpc::CompletionQueue::SHUTDOWN:
          return false;
        case grpc::CompletionQueue::TIMEOUT:
          break;
      }
    } while (std::chrono::steady_clock::now() < until);
  }
  return queue_->Next(tag, ok);
}

void GrpcEventLoop::Work() {
  std::vector<absl::AnyInvocable<void()>> posted;
  while (true) {
    posted.clear();
    {
      MutexLock lock(mutex_);
      posted.swap(posted_);
      if (posted.empty() && starters_.empty()) {
        awake_ = false;
        return;
      }
    }
    for (auto& function : posted) function();
    if (!posted.empty()) continue;
    const std::vector<OperationStarter*> starters = std::exchange(starters_, {});
    for (OperationStarter* starter : starters) {
      starter->due_ = false;
      starter->StartOperations();
    }
  }
}

}  // namespace weir
