#include "tests/simulation/row_model.h"

#include <algorithm>

#include "common/model/key_bucket.h"

namespace weir {
namespace {

uint32_t BucketOf(uint64_t key) { return BucketOfHash(HashKey(key)); }

}  // namespace

void RowModel::Update(const std::vector<uint64_t>& batches) {
  ++version_;
  for (uint64_t key : ledger_->KeysOf(shard_)) UpdateKey(key, batches);
  if (rules().max_rows > 0) Evict();
  if (rules().expire_after_steps == 0) return;
  Expire(rows_);
  Expire(counters_);
}

void RowModel::UpdateKey(uint64_t key, const std::vector<uint64_t>& batches) {
  uint64_t examples = 0;
  for (uint64_t batch : batches) examples += ledger_->examples(batch);
  std::vector<float> sum;
  for (uint64_t batch : batches) {
    if (!ledger_->HasKey(batch, key)) continue;
    if (rows_.count(key) == 0 && sum.empty()) {
      Counter& counter = counters_[key];
      if (counter.pushes < rules().admit_after) {
        ++counter.pushes;
        counter.updated = version_;
        continue;
      }
      counters_.erase(key);
    }
    float gradient[Ledger::kDim];
    ledger_->RowGradient(batch, key, gradient);
    const float share = static_cast<float>(ledger_->examples(batch)) / static_cast<float>(examples);
    const bool first = sum.empty();
    sum.resize(Ledger::kDim);
    for (size_t i = 0; i < sum.size(); ++i) {
      const float product = batches.size() == 1 ? gradient[i] : share * gradient[i];
      sum[i] = first ? product : sum[i] + product;
    }
  }
  if (sum.empty()) return;
  Row& row = rows_[key];
  row.updated = version_;
  for (size_t i = 0; i < sum.size(); ++i) row.values[i] = row.values[i] - sum[i];
}

void RowModel::Evict() {
  std::map<uint32_t, std::vector<std::pair<uint64_t, uint64_t>>> buckets;  // (updated, key)
  for (const auto& [key, row] : rows_) buckets[BucketOf(key)].emplace_back(row.updated, key);
  for (auto& [bucket, rows] : buckets) {
    const uint64_t quota = rules().max_rows / kKeyBuckets + (bucket < rules().max_rows % kKeyBuckets ? 1 : 0);
    std::sort(rows.begin(), rows.end());
    for (size_t i = 0; i + quota < rows.size(); ++i) rows_.erase(rows[i].second);
  }
}

template <typename Of>
void RowModel::Expire(std::map<uint64_t, Of>& entries) const {
  const uint64_t after = rules().expire_after_steps, period = std::min<uint64_t>(after, 1024);
  for (auto i = entries.begin(); i != entries.end();) {
    const bool swept = BucketOf(i->first) % period == version_ % period;
    i = swept && version_ - i->second.updated >= after ? entries.erase(i) : std::next(i);
  }
}

std::vector<float> RowModel::Values() const {
  std::vector<float> values;
  for (uint64_t key : ledger_->KeysOf(shard_)) {
    const auto row = rows_.find(key);
    if (row == rows_.end()) {
      values.insert(values.end(), Ledger::kDim, 0.0f);
    } else {
      values.insert(values.end(), row->second.values.begin(), row->second.values.end());
    }
  }
  return values;
}

std::vector<float> SerialRows(const Ledger& ledger, uint32_t shard) {
  if (!ledger.options().table) return {};
  RowModel model(&ledger, shard);
  for (uint64_t step = 0; step < ledger.steps(); ++step) {
    uint64_t examples = 0;
    model.Update(ledger.PartsOf(step, &examples));
  }
  return model.Values();
}

}  // namespace weir
