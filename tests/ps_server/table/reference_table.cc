#include "tests/ps_server/table/reference_table.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "common/model/key_bucket.h"
#include "ps_server/table/table_partition.h"

namespace weir {
namespace {

using Config = v1::TableOptimizer;

double Power(double base, uint32_t n) {
  double power = 1;
  for (; n > 0; n /= 2, base = base * base) {
    if (n % 2 == 1) power = power * base;
  }
  return power;
}

float MeanOfSquares(const std::vector<float>& g) {
  std::vector<float> sums(16, 0);
  for (size_t i = 0; i < g.size(); ++i) sums[i % 16] = sums[i % 16] + g[i] * g[i];
  for (; sums.size() > 1; sums.resize(sums.size() / 2)) {
    for (size_t i = 0; i < sums.size() / 2; ++i) sums[i] = sums[i] + sums[i + sums.size() / 2];
  }
  return sums[0] / static_cast<float>(g.size());
}

}  // namespace

std::vector<float> ReferenceTable::Read(const State& state, uint64_t key) const {
  const auto row = state.rows.find(key);
  if (row != state.rows.end()) return row->second.values;
  std::vector<float> values(options_.dim);
  InitialRows(options_.seed, options_.name, options_.init).Fill(key, values.data(), values.size());
  return values;
}

std::vector<float> ReferenceTable::Words(const Row& row) const {
  std::vector<float> words = row.values;
  for (const std::vector<float>& slot : row.slots) words.insert(words.end(), slot.begin(), slot.end());
  const Config::Kind kind = options_.optimizer.type();
  if (kind == Config::KIND_ROWWISE_ADAGRAD) words.push_back(row.h);
  if (kind == Config::KIND_ADAM) {
    words.push_back(0);
    std::memcpy(&words.back(), &row.t, sizeof row.t);
  }
  return words;
}

void ReferenceTable::Step(Row& row, const std::vector<float>& gradient, double learning_rate) const {
  const Config& c = options_.optimizer;
  const float lr = static_cast<float>(learning_rate);
  const float decay = static_cast<float>(learning_rate * static_cast<double>(c.weight_decay()));
  const double beta1 = c.beta1(), beta2 = c.beta2();
  ++row.t;
  const float adam_rate = static_cast<float>(learning_rate / (1 - Power(beta1, row.t)));
  const float root_scale = static_cast<float>(1 / std::sqrt(1 - Power(beta2, row.t)));
  row.h = row.h + MeanOfSquares(gradient);
  for (size_t i = 0; i < gradient.size(); ++i) {
    const float g = gradient[i];
    float& w = row.values[i];
    switch (c.type()) {
      case Config::KIND_SGD:
        w = w - (lr * g + decay * w);
        break;
      case Config::KIND_MOMENTUM: {
        float& v = row.slots[0][i];
        v = c.momentum() * v + g;
        w = w - (lr * v + decay * w);
        break;
      }
      case Config::KIND_ADAGRAD: {
        float& sum = row.slots[0][i];
        sum = sum + g * g;
        w = w - (lr * g / (std::sqrt(sum) + c.epsilon()) + decay * w);
        break;
      }
      case Config::KIND_ROWWISE_ADAGRAD:
        w = w - (lr / (std::sqrt(row.h) + c.epsilon()) * g + decay * w);
        break;
      case Config::KIND_ADAM: {
        float &m = row.slots[0][i], &v = row.slots[1][i];
        m = c.beta1() * m + static_cast<float>(1 - beta1) * g;
        v = c.beta2() * v + static_cast<float>(1 - beta2) * (g * g);
        w = w - (adam_rate * m / (root_scale * std::sqrt(v) + c.epsilon()) + decay * w);
        break;
      }
      case Config::KIND_FTRL: {
        float &z = row.slots[0][i], &n = row.slots[1][i];
        const float before = std::sqrt(n);
        n = n + g * g;
        z = z + (g - (std::sqrt(n) - before) / lr * w);
        const float denominator = (c.beta() + std::sqrt(n)) / lr + c.l2();
        w = std::abs(z) <= c.l1() ? 0 : ((z > 0 ? c.l1() : -c.l1()) - z) / denominator;
        break;
      }
      default:
        break;
    }
  }
}

void ReferenceTable::Update(absl::Span<const Table::Part> parts, double learning_rate) {
  ++version_;
  double total = 0;
  std::set<uint64_t> touched;
  for (const Table::Part& part : parts) {
    total += part.weight;
    touched.insert(part.keys.begin(), part.keys.end());
  }
  for (const uint64_t key : touched) {
    std::vector<float> sum;
    for (const Table::Part& part : parts) {
      const auto found = std::lower_bound(part.keys.begin(), part.keys.end(), key);
      if (found == part.keys.end() || *found != key) continue;
      if (state_.rows.count(key) == 0 && sum.empty()) {
        if (state_.counters[key].pushes < options_.admit_after) {
          ++state_.counters[key].pushes;
          state_.counters[key].updated = version_;
          continue;
        }
        state_.counters.erase(key);
      }
      const float weight = static_cast<float>(part.weight / total);
      const auto* const values =
          static_cast<const float*>(part.gradients) + (found - part.keys.begin()) * options_.dim;
      const bool first = sum.empty();
      sum.resize(options_.dim);
      for (size_t i = 0; i < sum.size(); ++i) {
        sum[i] = first ? weight * values[i] : sum[i] + weight * values[i];
      }
    }
    if (sum.empty()) continue;
    if (state_.rows.count(key) == 0) {
      Row& row = state_.rows[key];
      row.values = Read({}, key);
      const Config::Kind kind = options_.optimizer.type();
      const size_t slots = kind == Config::KIND_ADAM || kind == Config::KIND_FTRL          ? 2
                           : kind == Config::KIND_MOMENTUM || kind == Config::KIND_ADAGRAD ? 1
                                                                                           : 0;
      for (size_t k = 0; k < slots; ++k) row.slots[k].assign(options_.dim, 0);
    }
    Row& row = state_.rows[key];
    row.updated = version_;
    Step(row, sum, learning_rate);
  }
  if (options_.max_rows > 0) Evict();
  if (options_.expire_after_steps > 0) Expire();
}

void ReferenceTable::Evict() {
  std::map<uint32_t, std::vector<std::pair<uint64_t, uint64_t>>> by_bucket;  // (updated, key)
  for (const auto& [key, row] : state_.rows) {
    by_bucket[BucketOfHash(HashKey(key))].push_back({row.updated, key});
  }
  for (auto& [bucket, rows] : by_bucket) {
    const size_t quota = options_.max_rows / 65536 + (bucket < options_.max_rows % 65536);
    if (rows.size() <= quota) continue;
    std::sort(rows.begin(), rows.end());
    for (size_t i = 0; i < rows.size() - quota; ++i) {
      state_.rows.erase(rows[i].second);
      ++evicted_;
    }
  }
}

void ReferenceTable::Expire() {
  const uint64_t period = std::min<uint64_t>(options_.expire_after_steps, 1024);
  const auto expire = [&](auto& map) {
    uint64_t count = 0;
    for (auto i = map.begin(); i != map.end();) {
      const bool swept = BucketOfHash(HashKey(i->first)) % period == version_ % period;
      const bool old = version_ - i->second.updated >= options_.expire_after_steps;
      if (swept && old) ++count;
      i = swept && old ? map.erase(i) : std::next(i);
    }
    return count;
  };
  expired_ += expire(state_.rows);
  expire(state_.counters);
}

}  // namespace weir
