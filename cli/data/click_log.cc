#include "cli/data/click_log.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/area_under_curve.h"
#include "common/base/random.h"

namespace weir {
namespace {

constexpr size_t kFactors = 4;
constexpr double kConstant = -1, kAgeWeight = 1.5;
constexpr double kWeightScale = 0.7, kFactorScale = 0.55;  // standard deviations
constexpr uint32_t kMostTags = 4;                          // of a row

// What the truth knows of a key: its weight, then its factors.
using Row = std::array<double, 1 + kFactors>;

// Keys by Zipf's law.
class Keys {
 public:
  Keys(uint64_t seed, const std::string& kind, uint32_t n, double exponent) {
    double sum = 0;
    const uint64_t key = RandomKey(seed, "click_log/" + kind);
    for (uint32_t k = 0; k < n; ++k) {
      sums_.push_back(sum += std::pow(k + 1.0, -exponent));
      RandomStream random(key, k);
      Row& row = rows_.emplace_back();
      for (size_t c = 0; c < row.size(); ++c)
        row[c] = (c == 0 ? kWeightScale : kFactorScale) * Normal(&random);
    }
  }

  uint32_t Draw(RandomStream* random) const {
    const double at = UniformFloat(random->Next()) * sums_.back();
    const auto found = std::upper_bound(sums_.begin(), sums_.end(), at);
    return static_cast<uint32_t>(
        std::min<std::ptrdiff_t>(found - sums_.begin(), static_cast<std::ptrdiff_t>(sums_.size()) - 1));
  }
  const Row& row(uint32_t key) const { return rows_[key]; }

 private:
  // Nearly: the sum of twelve uniform numbers, which has the same bits on every machine.
  static double Normal(RandomStream* random) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += UniformFloat(random->Next());
    return sum;
  }

  std::vector<double> sums_;  // of the weights up to each key
  std::vector<Row> rows_;
};

double Logit(const std::array<Row, 4>& rows, double age) {
  double logit = kConstant + kAgeWeight * (age - 0.5);
  for (size_t a = 0; a < rows.size(); ++a) {
    logit += rows[a][0];
    for (size_t b = a + 1; b < rows.size(); ++b) {
      for (size_t c = 1; c <= kFactors; ++c) logit += rows[a][c] * rows[b][c];
    }
  }
  return logit;
}

}  // namespace

ClickLog MakeClickLog(const ClickLogOptions& options, uint64_t first, uint64_t rows) {
  const Keys users(options.seed, "users", options.users, options.exponent),
      items(options.seed, "items", options.items, options.exponent),
      places(options.seed, "places", options.places, options.exponent),
      tags(options.seed, "tags", options.tags, options.exponent);
  const uint64_t key = RandomKey(options.seed, "click_log/rows");
  ClickLog log;
  log.csv = "click,user,item,place,tags,age\n";
  std::vector<Score> scores;
  double loss = 0, clicks = 0;
  for (uint64_t i = first; i < first + rows; ++i) {
    RandomStream random(key, i);
    const uint32_t user = users.Draw(&random), item = items.Draw(&random), place = places.Draw(&random);
    const uint32_t n = random.NextBelow(kMostTags + 1);
    Row mean{};
    std::string tag_list;
    for (uint32_t t = 0; t < n; ++t) {
      const uint32_t tag = tags.Draw(&random);
      absl::StrAppend(&tag_list, t == 0 ? "t" : "|t", tag);
      for (size_t c = 0; c < mean.size(); ++c) mean[c] += tags.row(tag)[c] / n;
    }
    const uint32_t percent = random.NextBelow(101);
    const double logit = Logit({users.row(user), items.row(item), places.row(place), mean},
                               static_cast<double>(percent) / 100);
    const double probability = 1 / (1 + std::exp(-logit));
    const bool click = UniformFloat(random.Next()) < probability;
    absl::StrAppendFormat(&log.csv, "%d,u%d,i%d,p%d,%s,%.2f\n", click ? 1 : 0, user, item, place, tag_list,
                          static_cast<double>(percent) / 100);
    loss -= std::log(click ? probability : 1 - probability);
    clicks += click ? 1 : 0;
    scores.push_back({static_cast<float>(logit), click});
  }
  const auto count = static_cast<double>(std::max<uint64_t>(1, rows));
  const double share = clicks / count;
  log.truth.clicks = share;
  log.truth.log_loss = loss / count;
  const auto part = [](double p) { return p > 0 ? -p * std::log(p) : 0; };
  log.truth.constant_log_loss = part(share) + part(1 - share);
  log.truth.auc = AreaUnderCurve(std::move(scores));
  return log;
}

}  // namespace weir
