#include "client/tensors/gradient_gate.h"

#include <utility>

namespace weir {

void GradientGate::Ready(size_t tensor) {
  std::shared_ptr<Watcher> watcher;
  {
    MutexLock lock(mutex_);
    if (!attached_) ready_.push_back(tensor);
    watcher = watcher_.lock();
  }
  if (watcher != nullptr) watcher->OnReady(tensor);
}

void GradientGate::Fail(const absl::Status& why) {
  std::shared_ptr<Watcher> watcher;
  {
    MutexLock lock(mutex_);
    if (!attached_ && failure_.ok()) failure_ = why;
    watcher = watcher_.lock();
  }
  if (watcher != nullptr) watcher->OnFailed(why);
}

bool GradientGate::Attach(const std::shared_ptr<Watcher>& watcher) {
  std::vector<size_t> ready;
  absl::Status failure;
  {
    MutexLock lock(mutex_);
    if (std::exchange(attached_, true)) return false;
    watcher_ = watcher;
    ready.swap(ready_);
    failure = failure_;
  }
  for (size_t tensor : ready) watcher->OnReady(tensor);
  if (!failure.ok()) watcher->OnFailed(failure);
  return true;
}

}  // namespace weir
