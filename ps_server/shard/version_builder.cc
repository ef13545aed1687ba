#include "ps_server/shard/version_builder.h"

#include <algorithm>
#include <array>

#include "common/bfloat16.h"
#include "common/value_cursor.h"

namespace weir {
namespace {

// bfloat16 is expanded in stretches that stay in the first-level cache.
constexpr int64_t kStretch = 2048;

}  // namespace

VersionBuilder::~VersionBuilder() {
  MutexLock lock(mutex_);
  Drop();
}

std::shared_ptr<const ShardVersion> VersionBuilder::version() const {
  MutexLock lock(mutex_);
  return overtaken_ ? nullptr : lent_;
}

std::shared_ptr<const ShardVersion> VersionBuilder::Finish(std::shared_ptr<const ShardVersion>* lent) {
  MutexLock lock(mutex_);
  if (overtaken_) return nullptr;
  std::shared_ptr<const ShardVersion> made = to_;
  *lent = lent_;
  Drop();
  return made;
}

void VersionBuilder::Overtake() {
  MutexLock lock(mutex_);
  overtaken_ = true;
  if (!applying_) Drop();
}

void VersionBuilder::Drop() {
  if (from_ == nullptr) return;
  from_ = nullptr;
  to_ = nullptr;
  lent_ = nullptr;
  store_->EndBuild();
}

int64_t VersionBuilder::Apply(int64_t first, int64_t count, absl::Span<const absl::string_view> pieces,
                              v1::Dtype dtype) {
  std::shared_ptr<const ShardVersion> from, to;
  {
    MutexLock lock(mutex_);
    if (overtaken_) return -1;
    applying_ = true;
    from = from_;
    to = to_;
  }
  int64_t bad = -1;
  const bool bf16 = dtype == v1::BF16;
  ValueCursor cursor(pieces, bf16 ? 2 : sizeof(float));
  std::array<float, kStretch> expanded;
  const auto update = [&](const BlockStore::Run& run, const void* gradient) {
    if (store_->UpdateRun(run, *from, *to, gradient, rate_) || bad >= 0) return;
    // For the message only: a peer that shares its memory may have changed it since.
    const size_t n = static_cast<size_t>(run.length);
    const size_t at = store_->kernels().first_non_finite(gradient, n);
    bad = run.local + static_cast<int64_t>(at < n ? at : 0);
  };
  const int64_t block_size = store_->partition_.block_size();
  for (int64_t block = first / block_size; block * block_size < first + count; ++block) {
    for (BlockStore::Run run : store_->runs_[block]) {
      for (const int64_t end = run.local + run.length; run.local < end; run.local += run.length) {
        const int64_t wanted = end - run.local;
        const char* const values = cursor.Take(bf16 ? std::min(wanted, kStretch) : wanted, &run.length);
        if (bf16) {
          FromBfloat16(values, expanded.data(), static_cast<size_t>(run.length));
          update(run, expanded.data());
        } else {
          update(run, values);
        }
      }
    }
  }
  from = nullptr;
  MutexLock lock(mutex_);
  applying_ = false;
  if (overtaken_) Drop();
  return bad;
}

}  // namespace weir
