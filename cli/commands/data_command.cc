// `weir data clicks`: writes DIR/train.csv and DIR/test.csv, and prints what a model can reach.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/commands/commands.h"
#include "cli/report/format.h"
#include "cli/report/summary.h"
#include "common/base/random.h"
#include "common/base/statistics.h"
#include "common/program/exit_codes.h"

namespace weir {
namespace {

// A click log that nobody clicked: who saw what where, and whether a click followed, with a probability that
// is known. Keys follow Zipf's law, as in real logs: a few keys come in many rows, most keys in few.
//
// The truth is a factorization machine. Each user, item, place and tag has a weight and some factors, drawn
// from (seed, kind, number). The logit of a click is the sum of a constant, the weights, a multiple of the
// age, and the inner products of factors. There is an inner product for each pair of user, item, place, and
// the mean of the tags. So a model that knows the truth reaches the log loss and the AUC below, and no model
// is better on infinitely many rows.
struct ClickLogOptions {
  uint64_t seed = 1;
  uint32_t users = 1000, items = 500, places = 8, tags = 100;
  // Of Zipf's law: key number k (from 1) has a weight of 1 / k^exponent.
  double exponent = 1.05;
};

// Measures of probabilities against what happened, over the rows of one file.
struct ClickLogTruth {
  double clicks = 0;  // their share of the rows
  // Of the true probabilities, in nats; of the clicks' share as everybody's probability.
  double log_loss = 0, constant_log_loss = 0;
  std::optional<double> auc;  // of the true probabilities; none if all rows are of one kind
};

struct ClickLog {
  // With a line of names: click,user,item,place,tags,age. The user is "u17", the item "i3", the place "p2",
  // tags are "t5|t12" or empty, the age is from 0 to 1.
  std::string csv;
  ClickLogTruth truth;
};

constexpr size_t kFactors = 4;
constexpr double kConstant = -1, kAgeWeight = 1.5;
constexpr double kWeightScale = 0.7, kFactorScale = 0.55;  // standard deviations
constexpr uint32_t kMostTags = 4;                          // of a row

// The truth about a key: its weight, then its factors.
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

// Rows [first, first + rows) of the endless log: a pure function of its arguments.
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

struct DataClicksOptions {
  std::string directory;
  uint64_t rows = 100000;      // to train
  uint64_t test_rows = 20000;  // the rows after them
  ClickLogOptions log;
};

int RunDataClicks(const DataClicksOptions& options) {
  std::error_code error;
  std::filesystem::create_directories(options.directory, error);
  if (error) {
    return Refuse(kExitConfig, absl::StrCat("cannot make the folder ", Printable(options.directory), ": ",
                                            error.message()));
  }
  const ClickLog train = MakeClickLog(options.log, 0, options.rows);
  const ClickLog test = MakeClickLog(options.log, options.rows, options.test_rows);
  for (const auto& [name, log] : {std::pair("train.csv", &train), std::pair("test.csv", &test)}) {
    const std::string path = absl::StrCat(options.directory, "/", name);
    if (const absl::Status written = WriteFileWhole(path, log->csv); !written.ok()) {
      return Refuse(kExitStorage, Printable(written.message()));
    }
    std::printf("%s: %s rows, %s clicked\n", Printable(path).c_str(),
                FormatCount(log == &train ? options.rows : options.test_rows).c_str(),
                FormatPercent(log->truth.clicks).c_str());
  }
  std::printf("of the true probabilities, on test.csv: log loss %.4f, AUC %s\n", test.truth.log_loss,
              test.truth.auc.has_value() ? FormatLoss(*test.truth.auc).c_str() : "-");
  std::printf("of the same probability for everybody: log loss %.4f, AUC 0.5\n",
              test.truth.constant_log_loss);
  return kExitOk;
}

constexpr const char* kDataExamples = R"(Examples:
  weir data clicks clicks
  weir data clicks clicks --rows=1000000 --users=100000 --items=20000 --seed=7)";

}  // namespace

void AddDataCommands(Commands& commands) {
  CLI::App* group = commands.AddGroup("data", "Make data to train on", kDataExamples);
  const auto options = std::make_shared<DataClicksOptions>();
  CLI::App* command = group->add_subcommand(
      "clicks", "Write a synthetic click log, and show which log loss and AUC a model can reach on it");
  AddNamed(command, "directory", &options->directory, "DIR", "The folder for train.csv and test.csv")
      ->required();
  constexpr int kMostRows = 100000000, kMostKeys = 10000000;
  AddCount(command, "--rows", &options->rows, kMostRows, "Rows of train.csv");
  AddCount(command, "--test_rows", &options->test_rows, kMostRows, "Rows of test.csv, which follow those");
  command->add_option("--seed", options->log.seed, "Another seed makes another truth and other rows")
      ->capture_default_str();
  AddCount(command, "--users", &options->log.users, kMostKeys, "Users");
  AddCount(command, "--items", &options->log.items, kMostKeys, "Items");
  AddCount(command, "--tags", &options->log.tags, kMostKeys, "Tags; a row has up to 4");
  command->add_option("--exponent", options->log.exponent, "Of Zipf's law for all keys")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  commands.OnRun(command, [options] { return RunDataClicks(*options); });
}

}  // namespace weir
