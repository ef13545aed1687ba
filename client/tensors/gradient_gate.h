#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/sync/mutex.h"

namespace weir {

// Lets a push begin before its gradient is there: Client::Push() and PushPull() that are given a gate send
// each piece of the gradient once the tensors in it are Ready(), of those that wait the first in the model's
// order first. One gate for one push. Thread-safe.
class GradientGate {
 public:
  // The tensor (its position in ModelSpec::tensors) holds its gradient, and does not change until the push's
  // Future is ready. In any order, before or after the push has begun; a second time changes nothing. Returns
  // at once. All tensors must be Ready() before the push's deadline, cluster.wait_seconds after it began.
  void Ready(size_t tensor);

  // The gradient will never be whole: the push ends with `why`, an error, and leaves no trace. Too late once
  // all tensors are Ready().
  void Fail(const absl::Status& why);

  // ---- for the client

  class Watcher {
   public:
    virtual ~Watcher() = default;
    // On any thread.
    virtual void OnReady(size_t tensor) = 0;
    virtual void OnFailed(const absl::Status& why) = 0;
  };
  // Tells the watcher from now on, and at once what it has missed. False: the gate has had one before.
  bool Attach(const std::shared_ptr<Watcher>& watcher);

 private:
  Mutex mutex_;
  bool attached_ ABSL_GUARDED_BY(mutex_) = false;
  std::weak_ptr<Watcher> watcher_ ABSL_GUARDED_BY(mutex_);
  // Until it is attached.
  std::vector<size_t> ready_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
