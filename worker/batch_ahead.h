#pragma once

#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/types/span.h"
#include "common/sync/mutex.h"
#include "worker/data/dataset.h"

namespace weir {

// Gathers the examples of a gradient while another one is computed, on a thread of its own.
//
// One thread calls Take() and Begin(); Peek() may be called by any in between.
class BatchAhead {
 public:
  // Cuts examples into batches of these sizes, in their order.
  using Sizes = std::vector<size_t>;

  BatchAhead();
  ~BatchAhead();

  // Starts to gather what is likely to be taken next. `train` stays until then.
  void Begin(const Dataset& train, absl::Span<const int32_t> examples, const Sizes& sizes);
  // The batches, begun before or not; good until the next Take(). Those that were begun stay where they were.
  const std::vector<Batch>& Take(const Dataset& train, absl::Span<const int32_t> examples,
                                 const Sizes& sizes);
  // What was begun, if it is there.
  const std::vector<Batch>* Peek();

 private:
  // What is gathered, and where to.
  struct Order {
    const Dataset* train = nullptr;
    std::vector<int32_t> examples;
    Sizes sizes;
    std::vector<Batch> batches;
  };
  static void Gather(Order* order);
  void Run();

  // The one that was taken last, and the one that was begun, which is the thread's while it is under way.
  Order taken_, begun_;
  Mutex mutex_;
  CondVar news_;
  enum class State { kIdle, kUnderWay, kDone } state_ ABSL_GUARDED_BY(mutex_) = State::kIdle;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace weir
