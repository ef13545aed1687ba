#include "worker/batch_ahead.h"

#include <utility>

#include "absl/status/statusor.h"
#include "common/threads/thread.h"

namespace weir {

BatchAhead::BatchAhead(int64_t worth_a_thread) : worth_a_thread_(worth_a_thread) {
  absl::StatusOr<std::thread> made = MakeThread("gather batches", [this] { Run(); });
  if (made.ok()) thread_ = *std::move(made);
}

BatchAhead::~BatchAhead() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    news_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void BatchAhead::Gather(Order* order) {
  order->batches.resize(order->sizes.size());
  absl::Span<const int32_t> left = order->examples;
  for (size_t i = 0; i < order->sizes.size(); ++i) {
    order->train->Gather(left.first(order->sizes[i]), &order->batches[i]);
    left.remove_prefix(order->sizes[i]);
  }
}

void BatchAhead::Begin(const Dataset& train, absl::Span<const int32_t> examples, const Sizes& sizes) {
  MutexLock lock(mutex_);
  while (state_ == State::kUnderWay) news_.Wait(mutex_);
  begun_.train = &train;
  begun_.examples.assign(examples.begin(), examples.end());
  begun_.sizes = sizes;
  if (!thread_.joinable() || SmallEnough(train, examples.size())) {
    Gather(&begun_);
    state_ = State::kDone;
  } else {
    state_ = State::kUnderWay;
    news_.NotifyAll();
  }
}

const std::vector<Batch>& BatchAhead::Take(const Dataset& train, absl::Span<const int32_t> examples,
                                           const Sizes& sizes) {
  MutexLock lock(mutex_);
  while (state_ == State::kUnderWay) news_.Wait(mutex_);
  if (state_ == State::kDone && begun_.train == &train && begun_.examples == examples &&
      begun_.sizes == sizes) {
    std::swap(taken_, begun_);
    state_ = State::kIdle;
    return taken_.batches;
  }
  taken_.train = &train;
  taken_.examples.assign(examples.begin(), examples.end());
  taken_.sizes = sizes;
  Gather(&taken_);
  return taken_.batches;
}

const std::vector<Batch>* BatchAhead::Peek() {
  MutexLock lock(mutex_);
  return state_ == State::kDone ? &begun_.batches : nullptr;
}

void BatchAhead::Run() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    if (state_ != State::kUnderWay) {
      news_.Wait(mutex_);
      continue;
    }
    // begun_ belongs to this thread while the state is kUnderWay.
    mutex_.Unlock();
    Gather(&begun_);
    mutex_.Lock();
    state_ = State::kDone;
    news_.NotifyAll();
  }
}

}  // namespace weir
