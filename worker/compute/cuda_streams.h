#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace weir::cuda {

// The three queues of a backend on the current device: compute, and copies in each direction, which run
// beside it. A copy to the host comes after the work that compute() holds when the copy is queued. Work that
// is queued on compute() later comes after all copies to the device; after those made ahead only once they
// have been joined. So a copy to the host comes after the copies to the device before it.
//
// The errors are the runtime's, and may be those of earlier work. Not thread-safe.
class Streams {
 public:
  Streams() = default;
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // Called before anything else.
  absl::Status Start();

  cudaStream_t compute() const { return compute_; }
  absl::Status CopyToHost(void* to_host, const void* from, size_t bytes);
  // Begins once everything before the mark `after` is done.
  absl::Status CopyToDevice(void* to, const void* from_host, size_t bytes, uint64_t after);
  // CopyToDevice(), but compute() does not wait for the copy.
  absl::Status CopyAhead(void* to, const void* from_host, size_t bytes, uint64_t after);
  // compute() continues after all copies to the device before the mark.
  absl::Status Join(uint64_t mark);

  // A mark behind everything that is queued on the three streams; marks count from 1. Waits for the mark
  // kMarks before it.
  absl::Status Record(uint64_t* mark);
  // Returns once everything before the mark is done. 0 is before everything.
  absl::Status Wait(uint64_t mark);
  // Returns whether everything before the mark is done, or something has failed.
  bool Passed(uint64_t mark) const;
  absl::Status WaitForAll();

 private:
  static constexpr uint64_t kMarks = 256;
  struct Mark {
    cudaEvent_t computed = nullptr, uploaded = nullptr, downloaded = nullptr;
  };

  // The events of a mark; nullptr if the mark has long passed.
  const Mark* Pending(uint64_t mark) const {
    return mark == 0 || mark + kMarks < next_mark_ ? nullptr : &marks_[mark % kMarks];
  }

  cudaStream_t compute_ = nullptr, upload_ = nullptr, download_ = nullptr;
  // The latest events by which one stream waits for another.
  cudaEvent_t computed_ = nullptr, uploaded_ = nullptr;
  Mark marks_[kMarks];
  uint64_t next_mark_ = 1;
};

}  // namespace weir::cuda
