#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace weir::cuda {

// The three queues of a backend on the current device: compute, and copies in each direction, which run
// beside it. A copy to the host comes after what compute() holds when it is queued; what is queued on
// compute() later comes after all copies to the device, those ahead when they have been joined. So a copy to
// the host comes after the copies to the device before it.
//
// The errors are the runtime's, which may be those of earlier work. Not thread-safe.
class Streams {
 public:
  Streams() = default;
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // Before anything else.
  absl::Status Start();

  cudaStream_t compute() const { return compute_; }
  absl::Status CopyToHost(void* to_host, const void* from, size_t bytes);
  // Begins once all before the mark `after` is done.
  absl::Status CopyToDevice(void* to, const void* from_host, size_t bytes, uint64_t after);
  // The same, without compute() waiting for it.
  absl::Status CopyAhead(void* to, const void* from_host, size_t bytes, uint64_t after);
  // compute() goes on after all copies to the device before the mark.
  absl::Status Join(uint64_t mark);

  // A mark behind all that is queued on the three streams, from 1 on. Waits for the mark kMarks before it.
  absl::Status Record(uint64_t* mark);
  // Returns once all before the mark is done. 0 is before everything.
  absl::Status Wait(uint64_t mark);
  // Whether all before the mark is done, or something has failed.
  bool Passed(uint64_t mark) const;
  absl::Status WaitForAll();

 private:
  static constexpr uint64_t kMarks = 256;
  struct Mark {
    cudaEvent_t computed = nullptr, uploaded = nullptr, downloaded = nullptr;
  };

  // The events of a mark; none where it has long passed.
  const Mark* Pending(uint64_t mark) const {
    return mark == 0 || mark + kMarks < next_mark_ ? nullptr : &marks_[mark % kMarks];
  }

  cudaStream_t compute_ = nullptr, upload_ = nullptr, download_ = nullptr;
  // The latest order of one stream after another.
  cudaEvent_t computed_ = nullptr, uploaded_ = nullptr;
  Mark marks_[kMarks];
  uint64_t next_mark_ = 1;
};

}  // namespace weir::cuda
