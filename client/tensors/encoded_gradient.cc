#include "client/tensors/encoded_gradient.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/codec/value_codec.h"

namespace weir {
namespace {

// In elements, a multiple of each type's blocks: what is gathered before it is encoded stays in the
// first-level cache.
constexpr int64_t kStretch = 4096;
static_assert(kStretch % kBlockValues == 0 && kStretch % kTopKBlockValues == 0);

}  // namespace

EncodedGradient::EncodedGradient(const TensorMap& map, GradientTensors tensors, const WireOptions& wire,
                                 Feedback feedback)
    : map_(map),
      tensors_(std::move(tensors)),
      type_(wire.push_type()),
      chunk_elements_(wire.chunk_elements),
      chunk_bytes_(EncodedBytes(type_, static_cast<uint64_t>(wire.chunk_elements))),
      feedback_(std::move(feedback)) {
  MutexLock lock(mutex_);
  for (uint32_t shard = 0; shard < map_.partition().shards(); ++shard) {
    OfShard& of = shards_.emplace_back();
    of.elements = map_.partition().shard_elements(shard);
    const auto chunks = static_cast<size_t>((of.elements + chunk_elements_ - 1) / chunk_elements_);
    of.bytes.reset(new char[chunks * chunk_bytes_]);
    of.encoded.resize(chunks);
    of.missing = chunks;
    if (feedback_.residuals == nullptr) continue;
    of.carried = feedback_.residuals->Take(KeyOf(shard));
    of.left = feedback_.residuals->New(shard);
  }
}

EncodedGradient::~EncodedGradient() {
  for (uint32_t shard = 0; shard < map_.partition().shards(); ++shard) Answered(shard, false);
}

int64_t EncodedGradient::LengthOf(const OfShard& of, size_t chunk) const {
  return std::min(chunk_elements_, of.elements - static_cast<int64_t>(chunk) * chunk_elements_);
}

bool EncodedGradient::Encode(uint32_t shard, size_t chunk) {
  MutexLock lock(mutex_);
  OfShard& of = shards_[shard];
  // A shard may answer before it has the whole push. Then nothing more is sent.
  if (of.encoded[chunk] || of.answered) return true;
  const int64_t begin = static_cast<int64_t>(chunk) * chunk_elements_, end = begin + LengthOf(of, chunk);
  float gathered[kStretch];
  char* to = of.bytes.get() + ChunkAt(chunk);
  for (int64_t at = begin; at < end; at += kStretch) {
    const auto n = static_cast<size_t>(std::min(kStretch, end - at));
    const float* values = nullptr;
    float* next = gathered;
    map_.Walk(shard, at, static_cast<int64_t>(n), [&](size_t tensor, int64_t first, int64_t count) {
      const float* const run = static_cast<const float*>(tensors_.begin[tensor]) + first;
      if (count == static_cast<int64_t>(n)) {
        values = run;
        return;
      }
      std::memcpy(next, run, static_cast<size_t>(count) * sizeof(float));
      next += count;
    });
    if (values == nullptr) values = gathered;
    const size_t done =
        of.left == nullptr
            ? EncodeBlocks(type_, values, to, n)
            : EncodeBlocksWithFeedback(type_, values, of.carried == nullptr ? nullptr : of.carried.get() + at,
                                       to, of.left.get() + at, n);
    if (done < n) return false;
    to += EncodedBytes(type_, n);
  }
  of.encoded[chunk] = true;
  --of.missing;
  return true;
}

absl::Span<const char> EncodedGradient::Chunk(uint32_t shard, size_t chunk) const {
  MutexLock lock(mutex_);
  const OfShard& of = shards_[shard];
  return {of.bytes.get() + ChunkAt(chunk), EncodedBytes(type_, static_cast<uint64_t>(LengthOf(of, chunk)))};
}

void EncodedGradient::Answered(uint32_t shard, bool took_effect) {
  MutexLock lock(mutex_);
  OfShard& of = shards_[shard];
  if (std::exchange(of.answered, true) || of.left == nullptr) return;
  // A push that was sent before under its key, by a call that failed, may have taken effect without all of
  // this one. Then it is not known what is left.
  std::shared_ptr<float> residual = !took_effect      ? std::move(of.carried)
                                    : of.missing == 0 ? std::move(of.left)
                                                      : nullptr;
  if (residual != nullptr) feedback_.residuals->Put(KeyOf(shard), std::move(residual));
  of.carried = nullptr;
  of.left = nullptr;
}

}  // namespace weir
