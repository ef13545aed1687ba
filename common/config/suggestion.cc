#include "common/config/suggestion.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace weir {
namespace {

constexpr size_t kMaxWord = 64;  // longer ones are no slips of the pen

// Levenshtein's distance, where two neighbours that have changed places count as one slip.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<size_t>> rows(a.size() + 1, std::vector<size_t>(b.size() + 1));
  std::iota(rows[0].begin(), rows[0].end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    rows[i][0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = rows[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      rows[i][j] = std::min({replaced, rows[i - 1][j] + 1, rows[i][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        rows[i][j] = std::min(rows[i][j], rows[i - 2][j - 2] + 1);
      }
    }
  }
  return rows.back().back();
}

}  // namespace

std::string DidYouMean(absl::string_view word, const std::vector<std::string>& candidates) {
  if (word.size() < 2 || word.size() > kMaxWord) return "";
  const std::string* best = nullptr;
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    // "num_workers" may mean "workers", and the other way round.
    const bool contained = word.size() > 3 && (absl::StrContains(candidate, word) ||
                                               (candidate.size() > 3 && absl::StrContains(word, candidate)));
    const size_t distance = contained ? 1 : EditDistance(word, candidate);
    if (distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
  }
  return best == nullptr ? "" : absl::StrCat(" (did you mean \"", *best, "\"?)");
}

}  // namespace weir
