#pragma once

#include <cstddef>
#include <functional>

namespace weir {

// Memory of which another process writes one value between two reads of this process, and the test says
// between which: so it goes through all orders of reads and writes, where two threads would meet some of them
// by chance. Each read traps: the memory allows no access, the instruction that meets that is then run alone.
// On x86-64; one at a time, and one thread. What is no such read crashes as ever.
class RacingWriter {
 public:
  static constexpr size_t kElements = 1024;

  RacingWriter();
  ~RacingWriter();
  RacingWriter(const RacingWriter&) = delete;
  RacingWriter& operator=(const RacingWriter&) = delete;

  // Of kElements, for reading alone.
  const float* values() const;
  void Write(size_t at, float value);
  // Runs `read`, and after its first `reads` instructions that read here writes `value` to element `at`.
  // Returns how many there were in all.
  int Run(size_t at, float value, int reads, const std::function<void()>& read);
};

}  // namespace weir
