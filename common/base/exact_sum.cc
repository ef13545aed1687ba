#include "common/base/exact_sum.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "absl/numeric/bits.h"
#include "absl/strings/str_cat.h"

namespace weir {
namespace {

constexpr uint64_t kLow = 0xffffffff;

// The parts of a double, whose value is fraction * 2^(exponent - 1074).
constexpr int kFractionBits = 52;
constexpr uint64_t kExponentMask = 0x7ff;

// The exponent of the lowest bit.
constexpr int kLowest = -1074;

}  // namespace

void ExactSum::Add(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint64_t exponent = (bits >> kFractionBits) & kExponentMask;
  if (exponent == kExponentMask) {
    finite_ = false;
    return;
  }
  const uint64_t implied = exponent == 0 ? 0 : 1;
  const uint64_t fraction = (bits & ((uint64_t{1} << kFractionBits) - 1)) | (implied << kFractionBits);
  const uint64_t at = exponent - implied;
  const uint64_t shift = at % kDigitBits;
  uint64_t* const digit = &digits_[at / kDigitBits];
  const uint64_t rest = fraction >> (kDigitBits - shift);
  digit[0] += (fraction << shift) & kLow;
  digit[1] += rest & kLow;
  digit[2] += rest >> kDigitBits;
  // Each addition adds less than 2^32 to a digit, which has room for 2^32 of them.
  if (++added_ == std::numeric_limits<uint32_t>::max()) Carry();
}

void ExactSum::Add(const ExactSum& other) {
  ExactSum carried = other;
  carried.Carry();
  if (added_ == std::numeric_limits<uint32_t>::max() - 1) Carry();
  ++added_;
  for (size_t i = 0; i < kDigits; ++i) digits_[i] += carried.digits_[i];
  finite_ = finite_ && carried.finite_;
}

void ExactSum::Carry() {
  for (size_t i = 0; i + 1 < kDigits; ++i) {
    digits_[i + 1] += digits_[i] >> kDigitBits;
    digits_[i] &= kLow;
  }
  // 2^64 doubles do not come here, but a sum of parsed ones may.
  if (digits_.back() > kLow) finite_ = false;
  digits_.back() &= kLow;
  added_ = 1;
}

double ExactSum::value() const {
  ExactSum sum = *this;
  sum.Carry();
  if (!sum.finite_) return std::numeric_limits<double>::infinity();
  int top = kDigits - 1;
  while (top >= 0 && sum.digits_[top] == 0) --top;
  if (top < 0) return 0;
  // The top 64 bits, of which the lowest is also set if any bit below them is: so the conversion rounds to
  // nearest.
  const auto digit = [&](int i) { return i < 0 ? uint64_t{0} : sum.digits_[i]; };
  const int zeros = absl::countl_zero(static_cast<uint32_t>(digit(top)));
  uint64_t bits = (digit(top) << kDigitBits) | digit(top - 1);
  bits = (bits << zeros) | ((digit(top - 2) << zeros) >> kDigitBits);
  bool below = static_cast<uint32_t>(digit(top - 2) << zeros) != 0;
  for (int i = top - 3; i >= 0; --i) below |= sum.digits_[i] != 0;
  if (below) bits |= 1;
  return std::ldexp(static_cast<double>(bits), kDigitBits * (top - 1) - zeros + kLowest);
}

std::string ExactSum::Serialize() const {
  ExactSum sum = *this;
  sum.Carry();
  if (!sum.finite_) return std::string(1, kNotFinite);
  size_t first = 0, end = kDigits;
  while (first < end && sum.digits_[first] == 0) ++first;
  if (first == end) return "";
  while (sum.digits_[end - 1] == 0) --end;
  std::string bytes(1, static_cast<char>(first));
  for (size_t i = first; i < end; ++i) {
    for (int shift = 0; shift < kDigitBits; shift += 8) bytes += static_cast<char>(sum.digits_[i] >> shift);
  }
  return bytes;
}

absl::StatusOr<ExactSum> ExactSum::Parse(absl::string_view bytes) {
  ExactSum sum;
  if (bytes.empty()) return sum;
  if (bytes.size() == 1 && bytes[0] == kNotFinite) {
    sum.finite_ = false;
    return sum;
  }
  const auto byte = [&](size_t at) { return static_cast<uint64_t>(static_cast<unsigned char>(bytes[at])); };
  constexpr size_t kBytes = kDigitBits / 8;
  const size_t first = byte(0), digits = (bytes.size() - 1) / kBytes;
  if (bytes.size() % kBytes != 1 || digits == 0 || first + digits > kDigits) {
    return absl::InvalidArgumentError(absl::StrCat("a sum has at most ", kDigits, " digits of ", kBytes,
                                                   " bytes, got ", bytes.size() - 1,
                                                   " bytes of digits from place ", first, " on"));
  }
  for (size_t at = 1; at < bytes.size(); ++at) {
    const size_t i = at - 1;
    sum.digits_[first + i / kBytes] |= byte(at) << (8 * (i % kBytes));
  }
  sum.added_ = 1;
  if (sum.digits_[first] == 0 || sum.digits_[first + digits - 1] == 0) {
    return absl::InvalidArgumentError("a sum has digits of 0 at an end");
  }
  return sum;
}

}  // namespace weir
