#pragma once

#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/types/span.h"
#include "common/threads/mutex.h"
#include "worker/data/dataset.h"

namespace weir {

// Gathers the examples of one gradient while another gradient is computed, on a thread of its own. If the
// examples are few, Begin() gathers them itself, since handing them to a thread costs as much as the copy.
// This happens before the gradient's computation, and often while its weights are on their way. If the system
// gives no thread, Begin() gathers all examples itself.
//
// One thread calls Take() and Begin(). Any thread may call Peek() in between.
class BatchAhead {
 public:
  // Cuts examples into batches of these sizes, in their order.
  using Sizes = std::vector<size_t>;

  // Bytes of examples from which on the thread gathers them. At 10 GB/s they take about 25 us to copy; a
  // thread takes about as long to wake and to hand back.
  static constexpr int64_t kWorthAThread = 256 * 1024;

  explicit BatchAhead(int64_t worth_a_thread = kWorthAThread);
  ~BatchAhead();

  // Starts to gather the batches that are likely to be taken next. `train` must live until then.
  void Begin(const Dataset& train, absl::Span<const int32_t> examples, const Sizes& sizes);
  // The batches, whether begun before or not; valid until the next Take(). Begun batches stay where they
  // were.
  const std::vector<Batch>& Take(const Dataset& train, absl::Span<const int32_t> examples,
                                 const Sizes& sizes);
  // The batches that were begun, if they are ready; else nullptr.
  const std::vector<Batch>* Peek();

 private:
  bool SmallEnough(const Dataset& train, size_t examples) const {
    return static_cast<int64_t>(examples) * train.bytes_of_example() < worth_a_thread_;
  }
  // The examples to gather, and the batches to gather them into.
  struct Order {
    const Dataset* train = nullptr;
    std::vector<int32_t> examples;
    Sizes sizes;
    std::vector<Batch> batches;

    void Set(const Dataset& data, absl::Span<const int32_t> of, const Sizes& cut);
    void Gather();
  };
  void Run();

  // The order that was taken last, and the one that was begun, which the thread owns while it is under way.
  Order taken_, begun_;
  const int64_t worth_a_thread_;
  Mutex mutex_;
  CondVar news_;
  enum class State { kIdle, kUnderWay, kDone } state_ ABSL_GUARDED_BY(mutex_) = State::kIdle;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace weir
