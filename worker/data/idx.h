#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weir {

// The array in a file of the IDX format (http://yann.lecun.com/exdb/mnist/): two zero bytes, a type, the
// number of dimensions, their sizes as big-endian 32-bit numbers, the values.
struct IdxArray {
  std::vector<int64_t> shape;
  // Unsigned bytes as they are; every other type (int8, int16, int32, float32, float64) as float32.
  std::variant<std::vector<uint8_t>, std::vector<float>> values;
};

// Parses the bytes of a file, gzip or not. `file` is the file's name, for messages. Memory is taken as data
// arrives, never because a header claims it. InvalidArgument or DataLoss says what was seen and what was
// expected.
absl::StatusOr<IdxArray> ParseIdx(absl::string_view file, absl::string_view bytes);

// The header of a file, for which the file's first bytes are enough.
struct IdxHeader {
  std::vector<int64_t> shape;
  int64_t value_bytes = 0;  // at most, of a value in memory while ParseIdx() reads the file
};
absl::StatusOr<IdxHeader> ParseIdxHeader(absl::string_view file, absl::string_view beginning);

}  // namespace weir
