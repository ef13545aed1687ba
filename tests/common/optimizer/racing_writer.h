#pragma once

#include <cstddef>
#include <functional>

namespace weir {

// Memory in which another process writes one value between two reads of this process. The test chooses
// between which reads, so it covers all orders of reads and writes, where two threads would meet some of them
// by chance. Each read traps: the memory allows no access, and the instruction that faults then runs alone.
// On x86-64; one object at a time, and one thread. Any other fault crashes as usual.
class RacingWriter {
 public:
  static constexpr size_t kElements = 1024;

  RacingWriter();
  ~RacingWriter();
  RacingWriter(const RacingWriter&) = delete;
  RacingWriter& operator=(const RacingWriter&) = delete;

  // kElements values, read-only.
  const float* values() const;
  void Write(size_t at, float value);
  // Runs `read`, and after its first `reads` instructions that read this memory writes `value` to element
  // `at`. Returns the number of all such instructions.
  int Run(size_t at, float value, int reads, const std::function<void()>& read);
};

}  // namespace weir
