#include "ps_server/shard/versions/version_builder.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "common/codec/floats.h"
#include "common/codec/value_codec.h"
#include "common/codec/wire_codec.h"

namespace weir {
namespace {

// bfloat16 is expanded in parts of this many values, which stay in the first-level cache.
constexpr int64_t kStretch = 2048;

}  // namespace

VersionBuilder::~VersionBuilder() {
  MutexLock lock(mutex_);
  Drop(/*published=*/false);
}

std::shared_ptr<const LentVersion> VersionBuilder::version() const {
  MutexLock lock(mutex_);
  return overtaken_ ? nullptr : lent_;
}

std::shared_ptr<const ShardVersion> VersionBuilder::Finish() {
  MutexLock lock(mutex_);
  if (overtaken_) return nullptr;
  std::shared_ptr<const ShardVersion> made = to_;
  Drop(/*published=*/true);
  return made;
}

void VersionBuilder::Overtake() {
  MutexLock lock(mutex_);
  overtaken_ = true;
  if (!applying_) Drop(/*published=*/false);
}

void VersionBuilder::Drop(bool published) {
  if (from_ == nullptr) return;
  store_->EndBuild(published);
  from_ = nullptr;
  to_ = nullptr;
  lent_ = nullptr;
}

std::optional<NonFinite> VersionBuilder::Apply(int64_t first, int64_t count,
                                               absl::Span<const absl::string_view> pieces, v1::Dtype dtype) {
  std::shared_ptr<const ShardVersion> from, to;
  {
    MutexLock lock(mutex_);
    if (overtaken_) return std::nullopt;
    applying_ = true;
    from = from_;
    to = to_;
  }
  const int64_t block_size = store_->partition_.block_size();
  const int64_t begin = first / block_size, end = (first + count + block_size - 1) / block_size;
  const ValueCursor gradient(pieces, dtype);
  std::optional<NonFinite> bad;
  if (count * BytesPerValue(dtype) <= kMaxChunkBytes) {
    bad = ApplyBlocks(begin, end, gradient, dtype, *from, *to, /*read_soon=*/true);
  } else {
    // Each task applies the blocks of one chunk unit of the wire. The lowest bad position wins, whichever
    // task finds it.
    const int64_t blocks = kChunkUnit / block_size, tasks = (end - begin + blocks - 1) / blocks;
    std::vector<std::optional<NonFinite>> found(static_cast<size_t>(tasks));
    store_->options_.threads->ParallelFor(tasks, [&](int64_t task) {
      const int64_t at = begin + task * blocks;
      ValueCursor rest = gradient;
      rest.Skip(task * kChunkUnit);
      found[static_cast<size_t>(task)] =
          ApplyBlocks(at, std::min(at + blocks, end), rest, dtype, *from, *to, /*read_soon=*/false);
    });
    for (size_t i = 0; i < found.size() && !bad.has_value(); ++i) bad = found[i];
  }
  from = nullptr;
  chunks_.fetch_add(1, std::memory_order_relaxed);
  MutexLock lock(mutex_);
  applying_ = false;
  if (overtaken_) Drop(/*published=*/false);
  return bad;
}

std::optional<NonFinite> VersionBuilder::ApplyBlocks(int64_t begin, int64_t end, ValueCursor gradient,
                                                     v1::Dtype dtype, const ShardVersion& from,
                                                     const ShardVersion& to, bool read_soon) const {
  std::optional<NonFinite> bad;
  std::array<float, kStretch> expanded;
  const auto update = [&](const BlockStore::Run& run, const void* values) {
    if (store_->UpdateRun(run, from, to, values, rate_, read_soon) || bad.has_value()) return;
    // The value is for the message only: a peer that shares the memory may have changed it since.
    const int64_t at = FirstNonFiniteAt(values, run.length);
    bad = NonFinite{run.local + (at < run.length ? at : 0), 0};
    if (at == run.length) return;
    std::memcpy(&bad->value, static_cast<const char*>(values) + static_cast<size_t>(at) * sizeof(float),
                sizeof(float));
  };
  for (int64_t block = begin; block < end; ++block) {
    for (BlockStore::Run run : store_->runs_[static_cast<size_t>(block)]) {
      for (const int64_t last = run.local + run.length; run.local < last; run.local += run.length) {
        const int64_t wanted = last - run.local;
        const char* const values =
            gradient.Take(IsPlain(dtype) ? wanted : std::min(wanted, kStretch), &run.length);
        if (IsPlain(dtype)) {
          update(run, values);
        } else {
          Decode(dtype, values, expanded.data(), static_cast<size_t>(run.length));
          update(run, expanded.data());
        }
      }
    }
  }
  return bad;
}

}  // namespace weir
