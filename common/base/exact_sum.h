#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weir {

// The exact sum of doubles that are not negative. So the result does not depend on the order of the terms,
// nor on how they are divided over sums that are added up later. A fixed-point number with the range of
// double; adding a term takes a few instructions.
class ExactSum {
 public:
  // x >= 0. From an infinity or a NaN on the sum is not finite.
  void Add(double x);
  void Add(const ExactSum& other);

  // The double that is nearest to the sum. Infinity: the sum is not finite, or above all doubles.
  double value() const;

  // The bytes of a sum; equal sums have equal bytes. 0 has none, and a sum that is not finite has kNotFinite.
  // Any other has the place of its lowest digit that is not 0, and then the digits from there to the highest
  // that is not 0, each a uint32 in little-endian order.
  std::string Serialize() const;
  // InvalidArgument: Serialize() gives no such bytes.
  static absl::StatusOr<ExactSum> Parse(absl::string_view bytes);

 private:
  static constexpr char kNotFinite = '\xff';
  static constexpr int kDigitBits = 32;
  // The bits of all doubles, and 64 more for the number of terms.
  static constexpr size_t kDigits = (1074 + 1024 + 64 + kDigitBits - 1) / kDigitBits;

  void Carry();

  // Digit i counts 2^(32 i - 1074). A digit may be beyond 32 bits until its carry is passed on.
  std::array<uint64_t, kDigits> digits_{};
  // How many times something was added since the last Carry().
  uint32_t added_ = 0;
  bool finite_ = true;
};

}  // namespace weir
