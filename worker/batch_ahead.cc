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

void BatchAhead::Order::Set(const Dataset& data, absl::Span<const int32_t> of, const Sizes& cut) {
  train = &data;
  examples.assign(of.begin(), of.end());
  sizes = cut;
}

void BatchAhead::Order::Gather() {
  batches.resize(sizes.size());
  absl::Span<const int32_t> left = examples;
  for (size_t i = 0; i < sizes.size(); ++i) {
    train->Gather(left.first(sizes[i]), &batches[i]);
    left.remove_prefix(sizes[i]);
  }
}

void BatchAhead::Begin(const Dataset& train, absl::Span<const int32_t> examples, const Sizes& sizes) {
  MutexLock lock(mutex_);
  while (state_ == State::kUnderWay) news_.Wait(mutex_);
  begun_.Set(train, examples, sizes);
  if (!thread_.joinable() || SmallEnough(train, examples.size())) {
    begun_.Gather();
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
  taken_.Set(train, examples, sizes);
  taken_.Gather();
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
    begun_.Gather();
    mutex_.Lock();
    state_ = State::kDone;
    news_.NotifyAll();
  }
}

}  // namespace weir
