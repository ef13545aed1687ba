#include "tests/bench/row_gather.h"

#include <cmath>

#include "common/model/key_bucket.h"
#include "common/system/float_pool.h"

namespace weir::bench {
namespace {

// A rank in [0, n) with probability in proportion to 1 / (rank + 1)^kZipf: inversion of the integral of the
// density, which is close enough for a benchmark.
uint64_t ZipfRank(double uniform, uint64_t n) {
  const double top = std::pow(static_cast<double>(n) + 1, 1 - kZipf);
  return std::min(n - 1, static_cast<uint64_t>(std::pow(1 + uniform * (top - 1), 1 / (1 - kZipf)) - 1));
}

}  // namespace

uint64_t ZipfKey(uint64_t rows, RandomStream& random) {
  return HashKey(ZipfRank(static_cast<double>(random.NextBelow(1 << 30)) * 0x1p-30, rows)) % rows;
}

std::vector<std::vector<uint64_t>> ZipfBatches(uint64_t rows, uint64_t stream) {
  RandomStream random(RandomKey(1, "batches"), stream);
  std::vector<std::vector<uint64_t>> all(kBatches, std::vector<uint64_t>(kBatchKeys));
  for (std::vector<uint64_t>& batch : all) {
    for (uint64_t& key : batch) key = ZipfKey(rows, random);
  }
  return all;
}

void BareGather(const RowAddresses& map, absl::Span<const uint64_t> keys, size_t dim, float* out) {
  constexpr size_t kGroup = 128;
  const float* rows[kGroup];
  for (size_t first = 0; first < keys.size(); first += kGroup) {
    const size_t n = std::min(kGroup, keys.size() - first);
    for (size_t i = 0; i < n; ++i) map.prefetch(keys[first + i]);
    for (size_t i = 0; i < n; ++i) rows[i] = map.find(keys[first + i])->second;
    CopyRows(
        n, dim, [&](size_t i) { return rows[i]; }, out + first * dim);
  }
}

BareRows::BareRows(uint64_t rows, size_t dim)
    : dim_(dim), memory_(AllocateInHugePages(rows * dim * sizeof(float))) {
  float* const values = static_cast<float*>(memory_.get());
  map_.reserve(rows);
  for (uint64_t key = 0; key < rows; ++key) {
    std::fill_n(values + key * dim, dim, ValueOf(key));
    map_[key] = values + key * dim;
  }
}

}  // namespace weir::bench
