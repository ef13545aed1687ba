#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/threads/mutex.h"

namespace weir {

// Lets a push begin before its gradient is complete. With a gate, Client::Push() and PushPull() send each
// piece of the gradient once the tensors in it are Ready(). Of several such pieces, the first in the model's
// order goes first.
//
// Requires: a gate serves one push. All tensors are Ready() before the push's deadline, cluster.wait_seconds
// after it began.
//
// Thread safety: all functions are thread-safe.
class GradientGate {
 public:
  // Says that the tensor (its position in ModelSpec::tensors) holds its gradient. In any order, before or
  // after the push has begun; a second call changes nothing. Returns at once.
  // Requires: the tensor does not change until the push's Future is ready.
  void Ready(size_t tensor);

  // Says that the gradient will never be complete: the push ends with `why`, an error, and leaves no trace.
  // Has no effect once all tensors are Ready().
  void Fail(const absl::Status& why);

  // ---- for the client

  class Watcher {
   public:
    virtual ~Watcher() = default;
    // On any thread.
    virtual void OnReady(size_t tensor) = 0;
    virtual void OnFailed(const absl::Status& why) = 0;
  };
  // Calls the watcher from now on, and at once for what it has missed. False: the gate had a watcher before.
  bool Attach(const std::shared_ptr<Watcher>& watcher);

 private:
  Mutex mutex_;
  bool attached_ ABSL_GUARDED_BY(mutex_) = false;
  std::weak_ptr<Watcher> watcher_ ABSL_GUARDED_BY(mutex_);
  // Used until a watcher is attached.
  std::vector<size_t> ready_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
