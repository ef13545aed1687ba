#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "proto/coordinator.pb.h"

namespace weir {

// What the workers of a job say that all of them must agree on (JoinRequest.fingerprints). The first worker
// that gives a name decides its value. A name that a worker does not give is not compared.
//
// Belongs to the coordinator's queue.
class Fingerprints {
 public:
  // InvalidArgument: there are too many, a name or value is too long or cannot be printed, or a name comes
  // twice. FailedPrecondition: a value differs from that of the worker that gave the name first; names both.
  absl::Status Check(const v1::JoinRequest& request) const;
  // Takes the values of the names that nobody has given before. Check() allowed the request.
  void Declare(const v1::JoinRequest& request);
  // A worker that declared its fingerprints was admitted, so that Forget() has no effect from now on.
  void Settle() { settled_ = true; }
  // No worker waits that could have declared them.
  void Forget() {
    if (!settled_) declared_.clear();
  }

 private:
  struct Declared {
    std::string value;
    std::string task;  // of the first worker that gave it
  };
  // By name.
  std::map<std::string, Declared> declared_;
  bool settled_ = false;
};

}  // namespace weir
