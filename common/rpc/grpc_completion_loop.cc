#include "common/rpc/grpc_completion_loop.h"

#include <grpc/support/time.h>

namespace weir {

GrpcCompletionLoop::NextStatus GrpcCompletionLoop::HandleNext(Wait wait) {
  void* tag = nullptr;
  bool ok = false;
  waits_ = true;
  mutex.Unlock();
  const NextStatus next = wait(&tag, &ok);
  mutex.Lock();
  waits_ = false;
  if (next != NextStatus::GOT_EVENT) return next;
  if (tag == &alarm_) {
    alarm_set_ = false;
    return next;
  }
  mutex.Unlock();
  static_cast<GrpcEvent*>(tag)->OnEvent(ok);
  mutex.Lock();
  return next;
}

void GrpcCompletionLoop::Wake() {
  if (!waits_ || alarm_set_) return;
  alarm_set_ = true;
  alarm_.Set(queue_, gpr_time_0(GPR_CLOCK_MONOTONIC), &alarm_);
}

}  // namespace weir
