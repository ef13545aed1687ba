#include "client/tensors/outgoing_gradient.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/job_failure.h"
#include "common/protocol/limits.h"

namespace weir {
namespace {

// In elements. Up to this size the check takes hardly any time, and errors come sooner.
constexpr int64_t kSmall = 1 << 18;

}  // namespace

absl::StatusOr<std::shared_ptr<OutgoingGradient>> OutgoingGradient::Create(
    Options options, const TensorMap& map, GradientTensors tensors, const WireOptions& wire,
    GradientGate* gate, std::shared_ptr<const SharedSegment> memory) {
  if (!IsPlain(tensors.dtype) && wire.push_dtype != tensors.dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("the gradient is given as bfloat16, but pushes of this job travel as ",
                     IsPlain(wire.push_dtype) ? "float32" : v1::Dtype_Name(wire.push_dtype),
                     "; give its values as float32, or set wire.push_dtype or wire.dtype to bf16"));
  }
  const std::shared_ptr<OutgoingGradient> gradient(new OutgoingGradient(
      std::move(options), map, std::move(tensors), wire, gate != nullptr, std::move(memory)));
  if (gate != nullptr) {
    if (!gate->Attach(gradient)) {
      return absl::InvalidArgumentError("the gate is another push's; each push needs its own");
    }
  }
  if (const absl::Status& rows = gradient->options_.rows_finite; !rows.ok()) {
    MutexLock lock(gradient->mutex_);
    gradient->Refuse(rows);
  } else if (gate == nullptr && map.partition().elements() <= kSmall) {
    gradient->MayFinish();
  }
  WEIR_RETURN_IF_ERROR(gradient->failure());
  return gradient;
}

OutgoingGradient::OutgoingGradient(Options options, const TensorMap& map, GradientTensors tensors,
                                   const WireOptions& wire, bool gated,
                                   std::shared_ptr<const SharedSegment> memory)
    : options_(std::move(options)),
      map_(map),
      tensors_(std::move(tensors)),
      wire_(wire),
      gated_(gated),
      memory_(std::move(memory)),
      encoded_(IsQuantised(wire_.push_dtype)
                   ? std::make_unique<EncodedGradient>(
                         map_, tensors_, wire_,
                         EncodedGradient::Feedback{options_.residuals, options_.part, options_.clock,
                                                   options_.incarnations})
                   : nullptr) {
  const uint32_t shards = map_.partition().shards();
  first_chunk_.push_back(0);
  for (uint32_t shard = 0; shard < shards; ++shard) {
    const int64_t elements = map_.partition().shard_elements(shard);
    const int64_t chunks = (elements + wire_.chunk_elements - 1) / wire_.chunk_elements;
    first_chunk_.push_back(first_chunk_.back() + static_cast<size_t>(chunks));
  }
  finite_ = std::vector<std::atomic<bool>>(first_chunk_.back());
  unchecked_ = first_chunk_.back();
  MutexLock lock(mutex_);
  listeners_.resize(shards);
  ready_.assign(tensors_.begin.size(), !gated_);
  if (!gated_) return;
  awaited_ = tensors_.begin.size();
  awaits_ = std::vector<std::atomic<uint32_t>>(first_chunk_.back());
  for (uint32_t shard = 0; shard < shards; ++shard) {
    for (size_t tensor = 0; tensor < tensors_.begin.size(); ++tensor) {
      const auto [first, end] = chunks_of_.emplace_back(ChunksOf(shard, tensor));
      for (size_t chunk = first; chunk < end; ++chunk) ++awaits_[chunk];
    }
  }
}

std::pair<size_t, size_t> OutgoingGradient::ChunksOf(uint32_t shard, size_t tensor) const {
  const auto [first, end] = map_.LocalRange(shard, tensor);
  if (first == end) return {0, 0};
  return {first_chunk_[shard] + static_cast<size_t>(first / wire_.chunk_elements),
          first_chunk_[shard] + static_cast<size_t>((end - 1) / wire_.chunk_elements) + 1};
}

absl::Status OutgoingGradient::Check(uint32_t shard, size_t chunk) const {
  if (encoded_ != nullptr) {
    if (encoded_->Encode(shard, chunk)) return absl::OkStatus();
    const absl::Status found = map_.CheckFinite(tensors_, wire_.push_dtype);
    if (!found.ok()) return found;
    return absl::InvalidArgumentError(
        absl::StrCat("the gradient with the residual of error feedback has a magnitude above ",
                     kMostBlockValue, ", the most that ", v1::Dtype_Name(wire_.push_dtype), " carries"));
  }
  // The shard checks the chunk in the pass that applies it, before it publishes anything. A check here would
  // be a second pass over memory.
  if (options_.shard_checks && memory_ != nullptr) return absl::OkStatus();
  const int64_t first = static_cast<int64_t>(chunk) * wire_.chunk_elements;
  const int64_t count = std::min(wire_.chunk_elements, map_.partition().shard_elements(shard) - first);
  const absl::Status found = map_.CheckFinite(shard, first, count, tensors_, wire_.push_dtype);
  if (found.ok() || gated_) return found;
  // This value may not be the first in the model's order.
  return map_.CheckFinite(tensors_, wire_.push_dtype);
}

bool OutgoingGradient::MaySend(uint32_t shard, size_t chunk) {
  const size_t index = first_chunk_[shard] + chunk;
  if (ended_.load(std::memory_order_acquire)) return false;
  if (finite_[index].load(std::memory_order_acquire)) return true;
  // What was written to its tensors before OnReady() is seen from here on.
  if (gated_ && awaits_[index].load(std::memory_order_acquire) > 0) return false;
  if (const absl::Status found = Check(shard, chunk); !found.ok()) {
    MutexLock lock(mutex_);
    Refuse(found);
    return false;
  }
  if (!finite_[index].exchange(true, std::memory_order_acq_rel)) --unchecked_;
  return true;
}

bool OutgoingGradient::MayFinish() {
  for (uint32_t shard = 0; unchecked_ > 0 && shard < map_.partition().shards(); ++shard) {
    for (size_t chunk = 0; chunk < chunks(shard); ++chunk) {
      if (!MaySend(shard, chunk)) return false;
    }
  }
  return !ended_.load(std::memory_order_acquire);
}

absl::Status OutgoingGradient::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

std::string OutgoingGradient::refusal() const {
  MutexLock lock(mutex_);
  return refusal_;
}

size_t OutgoingGradient::awaited() const {
  MutexLock lock(mutex_);
  return awaited_;
}

void OutgoingGradient::SetListener(uint32_t shard, std::function<void()> changed) {
  MutexLock lock(mutex_);
  listeners_[shard] = std::move(changed);
  if (ended_.load()) listeners_[shard]();
}

void OutgoingGradient::RemoveListener(uint32_t shard) {
  MutexLock lock(mutex_);
  listeners_[shard] = nullptr;
}

void OutgoingGradient::OnReady(size_t tensor) {
  MutexLock lock(mutex_);
  if (tensor >= ready_.size()) {
    return Fail(absl::InvalidArgumentError(absl::StrCat("GradientGate::Ready(", tensor, "): the model has ",
                                                        tensors_.begin.size(), " tensors")));
  }
  if (ready_[tensor]) return;
  ready_[tensor] = true;
  --awaited_;
  for (size_t shard = 0; shard < listeners_.size(); ++shard) {
    // The last chunk of each shard waits for every tensor.
    bool news = awaited_ == 0;
    const auto [first, end] = chunks_of_[shard * ready_.size() + tensor];
    for (size_t chunk = first; chunk < end; ++chunk) {
      news |= awaits_[chunk].fetch_sub(1, std::memory_order_acq_rel) == 1;
    }
    if (news && listeners_[shard]) listeners_[shard]();
  }
}

void OutgoingGradient::OnFailed(const absl::Status& why) {
  MutexLock lock(mutex_);
  if (awaited_ > 0) Fail(why.ok() ? absl::CancelledError("the gradient was given up") : why);
}

void OutgoingGradient::Refuse(const absl::Status& found) {
  const std::string push = NonFinitePush(options_.worker, options_.task, found.message(), options_.clock,
                                         options_.batch, options_.first_example, options_.examples);
  if (!options_.reject) return Fail(Divergence(push));
  if (ended_.load()) return;
  refusal_ = push.substr(0, kMaxRefusalBytes);
  refused_.store(true, std::memory_order_release);
  End();
}

void OutgoingGradient::Fail(const absl::Status& why) {
  if (ended_.load()) return;
  failure_ = why;
  End();
}

void OutgoingGradient::End() {
  ended_.store(true, std::memory_order_release);
  for (const auto& listener : listeners_) {
    if (listener) listener();
  }
}

}  // namespace weir
