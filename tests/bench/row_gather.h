#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "common/base/random.h"

namespace weir::bench {

// Look-ups of an embedding table by hand, which are the limit of a server's speed: the rows of keys are
// prefetched, and then copied out.

// A batch of click data: 26 features of 4,096 examples, drawn by Zipf's law with this exponent.
inline constexpr size_t kBatchKeys = 26 * 4096;
inline constexpr double kZipf = 1.05;
// Batches that take turns, so that no step finds the rows of its rare keys in the caches.
inline constexpr size_t kBatches = 8;

// Draws a key in [0, rows) by Zipf's law. Frequent keys lie anywhere in the order of keys.
uint64_t ZipfKey(uint64_t rows, RandomStream& random);
// Returns kBatches batches of kBatchKeys keys of ZipfKey(). Equal values of `stream` give equal batches.
std::vector<std::vector<uint64_t>> ZipfBatches(uint64_t rows, uint64_t stream);

// Copies n rows of `dim` float32 to `out`. row(i): the address of row i.
template <typename RowAt>
void CopyRows(size_t n, size_t dim, const RowAt& row, float* out) {
  constexpr size_t kAhead = 16, kLine = 64;
  const size_t bytes = dim * sizeof(float);
  const auto prefetch = [&](size_t i) {
    const char* const at = reinterpret_cast<const char*>(row(i));
    for (size_t line = 0; line < bytes; line += kLine) __builtin_prefetch(at + line);
    __builtin_prefetch(at + bytes - 1);
  };
  for (size_t i = 0; i < std::min(kAhead, n); ++i) prefetch(i);
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) prefetch(i + kAhead);
    std::memcpy(out + i * dim, row(i), bytes);
  }
}

// By key: where its row lies.
using RowAddresses = absl::flat_hash_map<uint64_t, const float*>;

// Copies the rows of `keys` to `out`.
// Requires: all keys have rows.
void BareGather(const RowAddresses& map, absl::Span<const uint64_t> keys, size_t dim, float* out);

// Rows of all keys in [0, rows), in memory of this process, with the address of each.
class BareRows {
 public:
  // All values of a key's row are this one.
  static float ValueOf(uint64_t key) { return static_cast<float>(key % 65536); }

  BareRows(uint64_t rows, size_t dim);
  void Gather(absl::Span<const uint64_t> keys, float* out) const { BareGather(map_, keys, dim_, out); }

 private:
  const size_t dim_;
  const std::shared_ptr<void> memory_;
  RowAddresses map_;
};

}  // namespace weir::bench
