#include "common/protocol/logged_metric.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace weir {

absl::Status CheckMetricName(absl::string_view name) {
  constexpr size_t kLongest = 64;
  const bool letters = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.' || c == '/';
  });
  if (letters && !name.empty() && name.size() <= kLongest) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the metric \"", absl::CHexEscape(name.substr(0, kLongest)),
                   "\": a name has 1 to 64 letters, digits, '_', '-', '.' and '/'"));
}

std::optional<double> AucOf(absl::Span<const uint64_t> positives, absl::Span<const uint64_t> negatives) {
  double above = 0, ranked = 0, below = 0;  // positives; pairs in the right order; negatives
  for (size_t i = 0; i < std::min(positives.size(), negatives.size()); ++i) {
    const auto with = static_cast<double>(positives[i]), without = static_cast<double>(negatives[i]);
    ranked += with * (below + without / 2);
    above += with;
    below += without;
  }
  if (above == 0 || below == 0) return std::nullopt;
  return ranked / (above * below);
}

}  // namespace weir
