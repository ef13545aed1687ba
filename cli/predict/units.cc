#include "cli/predict/units.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace weir {
namespace {

constexpr double kLargest = 1e18;

// A number from 0 on, followed by one of these units.
absl::StatusOr<double> ParseWithUnit(const std::string& text,
                                     const std::vector<std::pair<const char*, double>>& units,
                                     const char* allowed) {
  const size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  double number;
  if (absl::SimpleAtod(text.substr(0, end), &number) && number <= kLargest) {
    if (text.substr(end).empty() && number == 0) return 0.0;
    for (const auto& [unit, factor] : units) {
      if (text.substr(end) == unit) return number * factor;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not ", allowed));
}

}  // namespace

absl::StatusOr<double> ParseBandwidth(const std::string& text) {
  return ParseWithUnit(
      text, {{"Gbit", 1e9 / 8}, {"Mbit", 1e6 / 8}, {"kbit", 1e3 / 8}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}},
      "a speed, such as 10Gbit, 100Mbit or 1.25GB (a second); 0: no limit");
}

absl::StatusOr<double> ParseSeconds(const std::string& text) {
  return ParseWithUnit(text, {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"min", 60}},
                       "a time, such as 50ms, 200us or 1.5s");
}

absl::StatusOr<std::vector<uint32_t>> ParseCounts(const std::string& text, uint32_t most) {
  const absl::Status wrong = absl::InvalidArgumentError(absl::StrCat(
      "'", text, "' is not a rising list of whole numbers from 1 to ", most, ", such as 4,16,64 or 1..256"));
  std::vector<uint32_t> counts;
  if (const size_t dots = text.find(".."); dots != std::string::npos) {
    uint32_t first, last;
    if (!absl::SimpleAtoi(text.substr(0, dots), &first) || !absl::SimpleAtoi(text.substr(dots + 2), &last) ||
        first < 1 || last < first || last > most) {
      return wrong;
    }
    for (uint64_t n = first; n <= last; n *= 2) counts.push_back(static_cast<uint32_t>(n));
    return counts;
  }
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    uint32_t n;
    if (!absl::SimpleAtoi(word, &n) || n < 1 || n > most || (!counts.empty() && n <= counts.back())) {
      return wrong;
    }
    counts.push_back(n);
  }
  return counts;
}

absl::StatusOr<Straggler> ParseStraggler(const std::string& text) {
  Straggler straggler;
  const std::pair<absl::string_view, absl::string_view> words = absl::StrSplit(text, absl::MaxSplits(':', 1));
  const auto [factor, share] = words;
  const bool has_share = text.find(':') != std::string::npos;
  if (factor.size() < 2 || factor.back() != 'x' ||
      !absl::SimpleAtod(factor.substr(0, factor.size() - 1), &straggler.factor) ||
      !(straggler.factor >= 1 && straggler.factor <= 1000) ||
      (has_share &&
       (!absl::SimpleAtod(share, &straggler.share) || !(straggler.share > 0 && straggler.share <= 1)))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text,
        "' is not a straggler: 4x (worker 0 takes 4 times as long) or 4x:0.1 (each batch does, with a "
        "probability of 0.1); the factor is from 1 to 1000"));
  }
  return straggler;
}

}  // namespace weir
