#pragma once

namespace weir {

// The tag of an operation on a completion queue that a GrpcCompletionLoop serves; gRPC gets it as a pointer
// to this class. It must live until OnEvent().
class GrpcEvent {
 public:
  // The operation has ended. Runs on the thread that serves the queue, without locks, and must not block. May
  // destroy the event.
  virtual void OnEvent(bool ok) = 0;

 protected:
  ~GrpcEvent() = default;
};

}  // namespace weir
