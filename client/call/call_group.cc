#include "client/call/call_group.h"

#include <algorithm>

namespace weir {

absl::Status CallGroup::Add(Call* call) {
  MutexLock lock(mutex_);
  if (closed_.ok()) calls_.push_back(call);
  return closed_;
}

void CallGroup::Remove(Call* call) {
  MutexLock lock(mutex_);
  calls_.erase(std::remove(calls_.begin(), calls_.end(), call), calls_.end());
  // Under the lock: the waiter may destroy the group as soon as it sees it empty.
  if (calls_.empty()) empty_.NotifyAll();
}

void CallGroup::Close(const absl::Status& why) {
  MutexLock lock(mutex_);
  if (!closed_.ok()) return;
  closed_ = why;
  for (Call* call : calls_) call->Cancel(why);
}

void CallGroup::WaitUntilEmpty() {
  MutexLock lock(mutex_);
  while (!calls_.empty()) empty_.Wait(mutex_);
}

}  // namespace weir
