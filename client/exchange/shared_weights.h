#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "client/exchange/shard_channel.h"
#include "client/tensors/tensor_map.h"
#include "common/system/float_pool.h"
#include "common/threads/mutex.h"

namespace weir {

// Counts the chunks of weights that a shard has sent over one stream in its shared memory, and says what the
// shard must be told next. The shard keeps a chunk unchanged until it is told that the chunk was read.
//
// The stream and each chunk hold this object, which holds the memory. So when the stream is over, what is
// being read stays mapped, and the shard, which sees that, keeps it unchanged. Thread-safe.
class SharedWeights : public std::enable_shared_from_this<SharedWeights> {
 public:
  // A chunk that is being read until this object is destroyed, on any thread.
  class Chunk {
   public:
    Chunk() = default;
    Chunk(Chunk&& other) noexcept : of_(std::move(other.of_)), number_(other.number_) {}
    Chunk& operator=(Chunk&& other) noexcept {
      std::swap(of_, other.of_);
      std::swap(number_, other.number_);
      return *this;
    }
    ~Chunk() {
      if (of_ != nullptr) of_->Release(number_, /*tell=*/true);
    }
    // Releases the chunk without news, because the caller is about to call TakeReleased().
    void Done() {
      if (of_ != nullptr) std::exchange(of_, nullptr)->Release(number_, /*tell=*/false);
    }

   private:
    friend class SharedWeights;
    Chunk(std::shared_ptr<SharedWeights> of, uint64_t number) : of_(std::move(of)), number_(number) {}
    std::shared_ptr<SharedWeights> of_;
    uint64_t number_ = 0;
  };

  // `news` runs when there is something to tell the shard, then not before the next TakeReleased(), and never
  // after End(). It runs on any thread and under a lock, so it must not call back or block.
  SharedWeights(std::shared_ptr<const ShardMemory> memory, std::function<void()> news)
      : memory_(std::move(memory)), news_(std::move(news)) {}

  // Called when the next chunk has come.
  Chunk Receive() {
    MutexLock lock(mutex_);
    states_.push_back(State::kRead);
    return Chunk(shared_from_this(), first_ + states_.size() - 1);
  }

  // v1.ExchangeRequest: `released`, with `first` for chunks that need a message of their own.
  struct Released {
    uint64_t first = 0;
    uint32_t count = 0;
  };
  // Returns the chunks that the shard must be told next, each chunk once.
  Released TakeReleased() {
    MutexLock lock(mutex_);
    told_ = true;
    Released next;
    // The oldest chunks that the shard keeps.
    while (!states_.empty() && states_.front() != State::kRead) {
      if (states_.front() == State::kDone) ++next.count, --done_;
      states_.pop_front();
      ++first_;
    }
    if (next.count > 0 || done_ == 0) return next;
    size_t at = 0;
    while (states_[at] != State::kDone) ++at;
    next.first = first_ + at;
    for (; at < states_.size() && states_[at] == State::kDone; ++at, ++next.count, --done_) {
      states_[at] = State::kTold;
    }
    return next;
  }

  // Runs no `news` any more.
  void End() {
    MutexLock lock(mutex_);
    news_ = nullptr;
  }

 private:
  enum class State : char { kRead, kDone, kTold };

  void Release(uint64_t number, bool tell) {
    MutexLock lock(mutex_);
    states_[number - first_] = State::kDone;
    ++done_;
    if (tell && std::exchange(told_, false) && news_) news_();
  }

  const std::shared_ptr<const ShardMemory> memory_;
  Mutex mutex_;
  std::function<void()> news_ ABSL_GUARDED_BY(mutex_);
  // `news` has not run since the last TakeReleased().
  bool told_ ABSL_GUARDED_BY(mutex_) = true;
  // The states of the chunks from number first_ on.
  std::deque<State> states_ ABSL_GUARDED_BY(mutex_);
  uint64_t first_ ABSL_GUARDED_BY(mutex_) = 1;
  // Chunks in kDone.
  size_t done_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Where the weights of one shard lie for a WeightsView, by chunk unit of local elements: in the shard's
// shared memory, in chunks that this object keeps, or in a buffer of the client. Not thread-safe.
class ShardView {
 public:
  // `elements`: the shard's elements, for which the buffers have room. unit: WireOptions::chunk_unit.
  // in_place: whether this may refer to shared memory.
  ShardView(int64_t elements, int64_t unit, std::shared_ptr<FloatPool<>> buffers, bool in_place);

  // Returns whether weights at this address in shared memory are read there.
  bool MayRefer(const char* values) const;
  // The unit at local position `first` lies at `values`, in the chunk that Keep() gets next.
  void Refer(int64_t first, const char* values);
  void Keep(SharedWeights::Chunk chunk) { chunks_.push_back(std::move(chunk)); }
  // Where the caller writes the unit at `first`.
  float* Copy(int64_t first);
  // Forgets all units and releases their memory.
  void Clear();

  // The value of a local element whose unit is there.
  const float* At(int64_t element) const;
  // Returns whether all weights lie in shared memory.
  bool in_place() const { return buffer_ == nullptr; }

 private:
  int64_t unit_;
  std::shared_ptr<FloatPool<>> buffers_;
  bool may_refer_;
  std::vector<const float*> units_;
  std::vector<SharedWeights::Chunk> chunks_;
  std::shared_ptr<float> buffer_;
};

// The pieces of each tensor, in the model's order; each piece is as long as it can be. All weights must be
// there.
std::vector<std::vector<absl::Span<const float>>> PiecesOf(const TensorMap& tensors,
                                                           const std::vector<ShardView>& shards);

}  // namespace weir
