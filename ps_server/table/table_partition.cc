#include "ps_server/table/table_partition.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/base/random.h"

namespace weir {
namespace {

// A search for a bucket's oldest rows finds as many for later.
constexpr size_t kOldest = 16;

}  // namespace

InitialRows::InitialRows(uint64_t seed, const std::string& table, const Initializer& init)
    : init_(init), random_key_(RandomKey(seed, "table " + table)) {}

void InitialRows::Fill(uint64_t key, float* out, size_t dim) const {
  if (init_.kind == Initializer::Kind::kConstant) {
    std::fill_n(out, dim, init_.value);
    return;
  }
  for (size_t first = 0; first < dim; first += 4) {
    const std::array<uint32_t, 4> words = Philox(random_key_, key, first / 4);
    std::array<float, 4> values;
    if (init_.kind == Initializer::Kind::kUniform) {
      for (size_t i = 0; i < 4; ++i) values[i] = (2.0f * UniformFloat(words[i]) - 1.0f) * init_.value;
    } else {
      for (size_t i = 0; i < 4; i += 2) {
        const std::array<double, 2> normals = TwoNormals(words[i], words[i + 1]);
        for (size_t k = 0; k < 2; ++k) values[i + k] = static_cast<float>(normals[k] * init_.value);
      }
    }
    std::copy_n(values.begin(), std::min<size_t>(4, dim - first), out + first);
  }
}

uint32_t TablePartition::PushesOf(const Record& counter) {
  uint32_t pushes;
  std::memcpy(&pushes, counter.words(), sizeof pushes);
  return pushes;
}

uint64_t TableRules::SweepPeriod() const { return std::min<uint64_t>(expire_after_steps, 1024); }

TablePartition::TablePartition(const TableRules& rules, uint32_t partition,
                               const std::shared_ptr<RecordPools>& pools)
    : rules_(rules),
      partition_(partition),
      rows_(rules.optimizer.row_words(), kBuckets, pools),
      counters_(/*words=*/1, rules.admit_after > 0 ? kBuckets : 1, pools),
      oldest_(rules.max_rows > 0 ? kBuckets : 0),
      sum_(rules.optimizer.dim()) {}

void TablePartition::Update(absl::Span<const RowGradient> gradients, Record* likely,
                            const VersionStep& step) {
  const uint64_t hash = gradients[0].hash, key = gradients[0].key;
  Record* row = likely;
  if (row != nullptr && row->key != key) row = rows_.now().Find(hash, key);
  if (row != nullptr) {
    rows_.Change(hash, row, step.version);
  } else {
    gradients.remove_prefix(CountPushes(hash, key, gradients.size(), step.version));
    if (gradients.empty()) return;
    row = rows_.Create(hash, key, step.version);
    ++admitted_;
    const size_t dim = rules_.optimizer.dim();
    rules_.initial.Fill(key, row->words(), dim);
    std::fill(row->words() + dim, row->words() + rules_.optimizer.row_words(), 0.0f);
    NoteQuota(hash);
  }
  const void* gradient = gradients[0].values;
  if (step.weights.size() > 1 || step.weights[0] != 1) {
    const Kernels& kernels = rules_.optimizer.kernels();
    kernels.scale(sum_.data(), step.weights[gradients[0].part], gradients[0].values, sum_.size());
    for (const RowGradient& g : gradients.subspan(1)) {
      kernels.accumulate(sum_.data(), step.weights[g.part], g.values, sum_.size());
    }
    gradient = sum_.data();
  }
  rules_.optimizer.Apply(row->words(), gradient, step.learning_rate);
}

size_t TablePartition::CountPushes(uint64_t hash, uint64_t key, size_t pushes, uint64_t version) {
  if (rules_.admit_after == 0) return 0;
  Record* counter = counters_.now().Find(hash, key);
  uint32_t count = counter == nullptr ? 0 : PushesOf(*counter);
  const size_t counted = std::min<size_t>(pushes, rules_.admit_after - count);
  if (counted < pushes) {  // admitted
    if (counter != nullptr) counters_.Erase(hash, counter);
    return counted;
  }
  if (counter == nullptr) {
    counter = counters_.Create(hash, key, version);
  } else {
    counters_.Change(hash, counter, version);
  }
  count += static_cast<uint32_t>(counted);
  std::memcpy(counter->words(), &count, sizeof count);
  return counted;
}

void TablePartition::NoteQuota(uint64_t hash) {
  if (rules_.max_rows == 0) return;
  const uint32_t bucket = BucketOfHash(hash);
  // No row goes before Finish(), so a bucket that grows has this size once.
  if (rows_.now().BucketSize(bucket) == rules_.QuotaOf(bucket) + 1) over_quota_.push_back(bucket);
}

void TablePartition::RestoreRow(uint64_t hash, uint64_t key, uint64_t updated, const float* words) {
  Record* const row = rows_.Create(hash, key, updated);
  std::memcpy(row->words(), words, rules_.optimizer.row_words() * sizeof(float));
  NoteQuota(hash);
}

void TablePartition::RestoreCounter(uint64_t hash, uint64_t key, uint64_t updated, uint32_t pushes) {
  pushes = std::min(pushes, rules_.admit_after);
  if (pushes == 0) return;  // its next push makes the row
  std::memcpy(counters_.Create(hash, key, updated)->words(), &pushes, sizeof pushes);
}

void TablePartition::Finish(const VersionStep& step) {
  for (const uint32_t bucket : over_quota_) EvictTo(rules_.QuotaOf(bucket), bucket);
  over_quota_.clear();
  if (rules_.expire_after_steps == 0) return;
  const uint64_t period = rules_.SweepPeriod(), first = FirstBucket(partition_);
  for (uint64_t b = first + (step.version % period + period - first % period) % period; b < first + kBuckets;
       b += period) {
    expired_ += Expire(rows_, static_cast<uint32_t>(b), step.version);
    if (rules_.admit_after > 0) Expire(counters_, static_cast<uint32_t>(b), step.version);
  }
}

void TablePartition::EvictTo(uint64_t quota, uint32_t bucket) {
  std::vector<Aged>& oldest = oldest_[bucket % kBuckets];
  while (rows_.now().BucketSize(bucket) > quota) {
    if (oldest.empty()) {
      aged_.clear();
      rows_.now().ForEach(bucket, [&](const Record& row) { aged_.push_back({row.updated, row.key}); });
      const auto end = aged_.begin() + static_cast<ptrdiff_t>(std::min(kOldest, aged_.size()));
      std::partial_sort(aged_.begin(), end, aged_.end());
      oldest.assign(std::make_reverse_iterator(end), aged_.rend());
    }
    const Aged oldest_row = oldest.back();
    oldest.pop_back();
    const uint64_t hash = HashKey(oldest_row.key);
    const Record* const row = rows_.now().Find(hash, oldest_row.key);
    if (row == nullptr || row->updated != oldest_row.updated) continue;
    rows_.Erase(hash, row);
    ++evicted_;
  }
}

size_t TablePartition::Expire(RecordStore& store, uint32_t bucket, uint64_t version) {
  aged_.clear();
  store.now().ForEach(bucket, [&](const Record& record) {
    if (version - record.updated >= rules_.expire_after_steps) {
      aged_.push_back({record.updated, record.key});
    }
  });
  for (const Aged& old : aged_) {
    const uint64_t hash = HashKey(old.key);
    store.Erase(hash, store.now().Find(hash, old.key));
  }
  return aged_.size();
}

void TablePartition::Pin(uint64_t version, const std::shared_ptr<RecordPools>& pools) {
  rows_.Pin(version, pools);
  counters_.Pin(version, pools);
}

void TablePartition::Unpin(uint64_t version) {
  rows_.Unpin(version);
  counters_.Unpin(version);
}

size_t TablePartition::bytes() const {
  size_t oldest = oldest_.size() * sizeof oldest_[0];
  for (const std::vector<Aged>& bucket : oldest_) oldest += bucket.capacity() * sizeof bucket[0];
  return rows_.bytes() + counters_.bytes() + oldest;
}

}  // namespace weir
