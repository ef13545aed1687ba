#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/model/model_spec.h"

namespace weir {

// The values that a row has before its first update: a pure function of (seed, table, key, column), with the
// same bits on every CPU. So a key that has no row can be read, and a row that comes into being needs nothing
// from anywhere.
//
// Four columns share the four words of Philox(RandomKey(seed, "table " + name), key, column / 4), with u =
// word / 2^32 rounded down to 24 bits for uniform:
//
//   constant  value
//   uniform   value (2 u - 1), column c from word c mod 4
//   normal    value times TwoNormals(): columns 4k, 4k + 1 from words 0, 1, and 4k + 2, 4k + 3 from words 2,
//   3
//
// Immutable, hence thread-safe.
class InitialRows {
 public:
  // The value of `init` must be finite.
  InitialRows(uint64_t seed, const std::string& table, const Initializer& init);

  // Writes the first `dim` columns of the key's row.
  void Fill(uint64_t key, float* out, size_t dim) const;

 private:
  const Initializer init_;
  const uint64_t random_key_;
};

}  // namespace weir
