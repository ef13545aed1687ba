#pragma once

#include "absl/functional/any_invocable.h"

namespace weir {

// Runs tasks one at a time, in the order in which they were posted.
class Executor {
 public:
  // On any thread. `task` does not run within this call, and never runs once the executor has stopped.
  virtual void Post(absl::AnyInvocable<void()> task) = 0;

 protected:
  ~Executor() = default;
};

}  // namespace weir
