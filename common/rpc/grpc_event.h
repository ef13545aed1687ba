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

// An operation of an object that lives on the thread which serves the queue. `done` is called when the
// operation ends.
template <typename Owner>
class GrpcOperation final : public GrpcEvent {
 public:
  GrpcOperation(Owner* owner, void (Owner::*done)(bool ok)) : owner_(owner), done_(done) {}

  void* tag() { return static_cast<GrpcEvent*>(this); }
  // Marks the operation as in flight. Returns the tag to start it with.
  void* Begin() {
    under_way_ = true;
    return tag();
  }
  bool under_way() const { return under_way_; }
  void OnEvent(bool ok) override {
    under_way_ = false;
    (owner_->*done_)(ok);
  }

 private:
  Owner* const owner_;
  void (Owner::*const done_)(bool ok);
  bool under_way_ = false;
};

}  // namespace weir
