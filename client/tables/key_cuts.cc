#include "client/tables/key_cuts.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "common/model/key_bucket.h"

namespace weir {
namespace {

struct Occurrence {
  uint64_t key;
  uint32_t position;
};

// Up to this many keys a comparison sort is faster.
constexpr size_t kFewKeys = 1024;

// Digits of the radix sort: six of 11 bits hold a key, and a digit's counters lie in the L1 cache.
constexpr int kDigitBits = 11, kDigits = 6;
constexpr uint64_t kDigitValues = uint64_t{1} << kDigitBits;

// Gradients that are on their way from memory while others are summed: in a batch, those of a key lie
// anywhere.
constexpr size_t kAhead = 8;
constexpr size_t kLine = 64;

void PrefetchRow(const float* row, size_t dim) {
  const char* const at = reinterpret_cast<const char*>(row);
  for (size_t byte = 0; byte < dim * sizeof(float); byte += kLine) __builtin_prefetch(at + byte);
}

uint64_t Digit(uint64_t key, int digit) { return key >> (digit * kDigitBits) & (kDigitValues - 1); }

// Sorts by key. Stable, and each pass goes once over the memory; a digit that all keys share, as the high
// ones of small keys, costs no pass.
void RadixSort(std::vector<Occurrence>& all) {
  std::vector<std::array<uint32_t, kDigitValues>> counts(kDigits);
  for (const Occurrence& one : all) {
    for (int digit = 0; digit < kDigits; ++digit) ++counts[static_cast<size_t>(digit)][Digit(one.key, digit)];
  }
  std::vector<Occurrence> sorted(all.size());
  for (int digit = 0; digit < kDigits; ++digit) {
    std::array<uint32_t, kDigitValues>& next = counts[static_cast<size_t>(digit)];
    if (next[Digit(all[0].key, digit)] == all.size()) continue;
    uint32_t before = 0;
    for (uint32_t& count : next) before += std::exchange(count, before);
    for (const Occurrence& one : all) sorted[next[Digit(one.key, digit)]++] = one;
    all.swap(sorted);
  }
}

KeyCut CutOf(absl::Span<const uint64_t> keys, uint32_t shards) {
  KeyCut cut;
  cut.batch = GroupByKey(keys);
  cut.of_shard.resize(shards);
  for (std::vector<uint32_t>& own : cut.of_shard) {
    // The hash levels the shards.
    own.reserve(cut.batch.keys.size() / shards + cut.batch.keys.size() / 16 + 16);
  }
  for (size_t i = 0; i < cut.batch.keys.size(); ++i) {
    cut.of_shard[ShardOfKey(cut.batch.keys[i], shards)].push_back(static_cast<uint32_t>(i));
  }
  return cut;
}

}  // namespace

KeyOccurrences GroupByKey(absl::Span<const uint64_t> keys) {
  std::vector<Occurrence> all(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) all[i] = {keys[i], static_cast<uint32_t>(i)};
  if (all.size() > kFewKeys) {
    RadixSort(all);
  } else {
    std::sort(all.begin(), all.end(), [](const Occurrence& a, const Occurrence& b) {
      return std::tie(a.key, a.position) < std::tie(b.key, b.position);
    });
  }
  size_t distinct = 0;
  for (size_t i = 0; i < all.size(); ++i) distinct += i == 0 || all[i].key != all[i - 1].key;
  KeyOccurrences result;
  result.keys.reserve(distinct);
  result.begin.reserve(distinct + 1);
  result.positions.resize(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    if (i == 0 || all[i].key != all[i - 1].key) {
      result.keys.push_back(all[i].key);
      result.begin.push_back(static_cast<uint32_t>(i));
    }
    result.positions[i] = all[i].position;
  }
  result.begin.push_back(static_cast<uint32_t>(all.size()));
  return result;
}

void SumDuplicates(absl::Span<const uint32_t> occurrences, const float* gradients, size_t dim,
                   float* __restrict sum) {
  std::memcpy(sum, gradients + occurrences[0] * dim, dim * sizeof(float));
  for (size_t i = 1; i < occurrences.size(); ++i) {
    if (i + kAhead < occurrences.size()) PrefetchRow(gradients + occurrences[i + kAhead] * dim, dim);
    const float* const gradient = gradients + occurrences[i] * dim;
    for (size_t column = 0; column < dim; ++column) sum[column] += gradient[column];
  }
}

void SumEach(const KeyOccurrences& batch, absl::Span<const uint32_t> keys, const float* gradients, size_t dim,
             float* sums) {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i + kAhead < keys.size()) {
      // Most keys occur a few times; SumDuplicates() sees to the others.
      const absl::Span<const uint32_t> next = batch.of(keys[i + kAhead]);
      for (uint32_t position : next.subspan(0, kAhead)) PrefetchRow(gradients + position * dim, dim);
    }
    SumDuplicates(batch.of(keys[i]), gradients, dim, sums + i * dim);
  }
}

std::shared_ptr<const KeyCut> KeyCuts::Find(uint32_t table, absl::Span<const uint64_t> keys) const {
  MutexLock lock(mutex_);
  for (const Kept& kept : kept_[table]) {
    if (kept.cut != nullptr && keys == absl::MakeConstSpan(kept.keys)) return kept.cut;
  }
  return nullptr;
}

std::shared_ptr<const KeyCut> KeyCuts::Cut(uint32_t table, absl::Span<const uint64_t> keys) {
  std::shared_ptr<const KeyCut> cut = Find(table, keys);
  if (cut != nullptr) return cut;
  cut = std::make_shared<const KeyCut>(CutOf(keys, shards_));
  Kept kept{{keys.begin(), keys.end()}, cut};
  MutexLock lock(mutex_);
  std::swap(kept_[table][0], kept_[table][1]);
  // The oldest one goes when the lock is released.
  std::swap(kept_[table][0], kept);
  return cut;
}

}  // namespace weir
