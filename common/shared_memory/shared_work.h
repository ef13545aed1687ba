#pragma once

namespace weir {

// Something that other processes leave work for in shared memory, ringing the doorbell of the loop that
// serves it. Both methods run on the loop's thread, without locks.
class SharedWork {
 public:
  // Whether there is something to do.
  virtual bool Ready() const = 0;
  // Does some of it. Must not block. May remove this or other work from the loop.
  virtual void Serve() = 0;

 protected:
  ~SharedWork() = default;
};

}  // namespace weir
