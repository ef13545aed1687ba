#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/tensors/encoded_gradient.h"
#include "client/tensors/gradient_gate.h"
#include "client/tensors/residuals.h"
#include "client/tensors/tensor_map.h"
#include "client/tensors/wire_options.h"
#include "common/system/shared_memory.h"
#include "common/threads/mutex.h"

namespace weir {

// The gradient of one push, as the exchanges with all shards send it: cut into chunks, each of which may
// leave once its tensors are ready and its values are found finite. Values are checked when they are about to
// be sent, so that they are read from memory once.
//
// A shard's last chunk may leave only when the whole gradient, with all shards' chunks, was found finite:
// then no shard can apply any part of a bad one. The thread that is about to send such a chunk checks what is
// left itself. So no thread waits for what another thread sends, only for tensors that are not ready.
//
// Once the gradient is found not to be finite, no chunk leaves any more. Then either the shards get the
// reason instead (refusal()), or the push fails (failure()).
//
// Thread-safe: a chunk may be checked twice at once, which is harmless. The tensor map and the tensors
// outlive this.
class OutgoingGradient final : public GradientGate::Watcher {
 public:
  struct Options {
    // The push, for messages.
    uint32_t worker = 0;
    std::string task;
    uint64_t clock = 0, batch = 0, first_example = 0, examples = 0;
    // A gradient that is not finite is refused. False: the push fails.
    bool reject = false;
    // The shard, and not this class, checks chunks that it reads in place. Only if the job has one shard:
    // then no other shard has to learn of a value that is not finite.
    bool shard_checks = false;
    // Of a quantised push: with this part, and weights of these incarnations of the shards, it may take
    // residuals; null: no error feedback.
    std::shared_ptr<Residuals> residuals = nullptr;
    uint32_t part = 0;
    std::vector<uint64_t> incarnations = {};
    // Of the push's rows (RowRoutes::finite()). An error has the effect of a value that is not finite.
    absl::Status rows_finite = absl::OkStatus();
  };
  // gate: null if all tensors are ready. memory: the segment that the tensors fill, and that servers may
  // read; null: there is none. A small gradient without a gate is checked here. InvalidArgument: the gate had
  // a push before, or the tensors are bfloat16 and the wire's values are not. Internal: a Divergence().
  static absl::StatusOr<std::shared_ptr<OutgoingGradient>> Create(
      Options options, const TensorMap& map, GradientTensors tensors, const WireOptions& wire,
      GradientGate* gate, std::shared_ptr<const SharedSegment> memory = nullptr);
  ~OutgoingGradient() override = default;

  const GradientTensors& tensors() const { return tensors_; }
  const std::shared_ptr<const SharedSegment>& memory() const { return memory_; }
  size_t chunks(uint32_t shard) const { return first_chunk_[shard + 1] - first_chunk_[shard]; }
  int64_t chunk_elements() const { return wire_.chunk_elements; }

  // The gradient as it travels, if its type on the wire is quantised: MaySend() encodes. Null: it travels
  // from the tensors' memory.
  EncodedGradient* encoded() const { return encoded_.get(); }

  // Checks the chunk, and returns whether it may leave if it is not the shard's last.
  bool MaySend(uint32_t shard, size_t chunk);
  // Checks what has not been checked, and returns whether the shards' last chunks may leave.
  bool MayFinish();

  // The error that the push ends with: the gradient was given up, or is not finite and not to be refused. OK:
  // none.
  absl::Status failure() const;
  // Why the shards must refuse the push: its gradient is not finite. Empty: they need not refuse it.
  bool refused() const { return refused_.load(std::memory_order_acquire); }
  std::string refusal() const;
  // The number of tensors that are not ready.
  size_t awaited() const;

  // `changed` runs, on any thread, when a chunk of the shard that could not leave may now be able to, and
  // when the gradient has failed or is refused (at once if it already has). `changed` must not block.
  void SetListener(uint32_t shard, std::function<void()> changed);
  // Returns when `changed` runs no more.
  void RemoveListener(uint32_t shard);

  void OnReady(size_t tensor) override;
  void OnFailed(const absl::Status& why) override;

 private:
  OutgoingGradient(Options options, const TensorMap& map, GradientTensors tensors, const WireOptions& wire,
                   bool gated, std::shared_ptr<const SharedSegment> memory);
  absl::Status Check(uint32_t shard, size_t chunk) const;
  void Refuse(const absl::Status& found) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The chunks of the shard that hold some of the tensor, as [first, end) among all shards' chunks.
  std::pair<size_t, size_t> ChunksOf(uint32_t shard, size_t tensor) const;

  const Options options_;
  const TensorMap& map_;
  const GradientTensors tensors_;
  const WireOptions wire_;
  const bool gated_;
  const std::shared_ptr<const SharedSegment> memory_;
  const std::unique_ptr<EncodedGradient> encoded_;
  // By shard: how many chunks the shards before it have; one more at the end.
  std::vector<size_t> first_chunk_;
  // By chunk, over all shards: whether it was found finite, and how many tensors in it are not ready.
  std::vector<std::atomic<bool>> finite_;
  std::vector<std::atomic<uint32_t>> awaits_;
  // With a gate: ChunksOf each tensor, of shard after shard. A gate may outlive the push, and so the client
  // that owns map_.
  std::vector<std::pair<size_t, size_t>> chunks_of_;
  // The number of chunks that were not found finite.
  std::atomic<size_t> unchecked_;
  // No chunk may leave any more: the gradient has failed or is refused.
  std::atomic<bool> ended_{false};
  std::atomic<bool> refused_{false};

  mutable Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::string refusal_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> ready_ ABSL_GUARDED_BY(mutex_);
  size_t awaited_ ABSL_GUARDED_BY(mutex_) = 0;
  // By shard.
  std::vector<std::function<void()>> listeners_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
