#include "tests/simulation/ledger.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "common/base/random.h"
#include "common/model/key_bucket.h"
#include "common/model/partition.h"

namespace weir {
namespace {

// Shards hold multiples of this many elements, so that all have equally many.
constexpr int64_t kGrain = 64;
// Of quantised pushes: the least that a shard holds, so that the blocks of the partition are whole blocks of
// the codec.
constexpr int64_t kQuantisedGrain = 8 * static_cast<int64_t>(kBlockValues);

// Keys with these buckets, three of each: some of the first, which have a larger quota, and some of the last.
std::vector<uint64_t> FindKeys() {
  constexpr size_t kOfBucket = 3;
  std::map<uint32_t, size_t> wanted;
  for (uint32_t i = 0; i < 4; ++i) wanted[i] = wanted[kKeyBuckets - 1 - i] = kOfBucket;
  std::vector<uint64_t> keys;
  RandomStream random(RandomKey(1, "keys"), 0);
  uint64_t key = 0;
  while (!wanted.empty()) {
    const uint64_t high = random.Next();
    key = high << 32 | random.Next();
    const auto bucket = wanted.find(BucketOfHash(HashKey(key)));
    if (bucket == wanted.end()) continue;
    keys.push_back(key);
    if (--bucket->second == 0) wanted.erase(bucket);
  }
  keys.push_back(key + 1);
  return keys;
}

}  // namespace

Ledger::Ledger(Options options)
    : options_(std::move(options)),
      batches_((options_.total_examples + options_.batch_size - 1) / options_.batch_size),
      who_(quantised() ? kBlockValues : batches_),
      mixed_(2 * who_) {
  const int64_t grain = quantised() ? kQuantisedGrain : kGrain;
  elements_ = (static_cast<int64_t>(mixed_) + kMixed + grain - 1) / grain * grain;
  const int64_t all = elements_ * options_.shards;
  // Two tensors, so that their border lies inside a block.
  const Initializer init = options_.uploaded ? Initializer::Uploaded() : Initializer::Zeros();
  model_.tensors = {{"first", {all / 2 - 5}, TensorKind::kParameter, init},
                    {"second", {all - all / 2 + 5}, TensorKind::kParameter, init}};
  static const std::vector<uint64_t> keys = FindKeys();
  keys_ = keys;
}

int64_t Ledger::chunk_unit() const {
  return Partition(elements_ * options_.shards, options_.shards).block_size();
}

uint64_t Ledger::examples(uint64_t batch) const {
  return std::min(options_.batch_size, options_.total_examples - batch * options_.batch_size);
}

bool Ledger::poisoned(uint64_t batch) const {
  const auto it = options_.poisoned.lower_bound({batch, 0});
  return it != options_.poisoned.end() && it->first == batch;
}

uint64_t Ledger::ExamplesOfStep(uint64_t step) const {
  const uint64_t first = step * options_.parts * options_.batch_size;
  return std::min(options_.parts * options_.batch_size, options_.total_examples - first);
}

float Ledger::Scale(uint64_t batch) const {
  return options_.sync ? static_cast<float>(ExamplesOfStep(batch / options_.parts)) /
                             static_cast<float>(examples(batch))
                       : 1.0f;
}

float Ledger::unit() const {
  // The scale of a block with it is 1.
  return options_.push_dtype == v1::INT8 ? 127.0f : options_.push_dtype == v1::INT4 ? 7.0f : 1.0f;
}

float Ledger::ValueOf(const std::vector<float>& weights, size_t from, uint64_t batch) const {
  if (options_.push_dtype != v1::BIT1) return weights[from + batch];
  return (weights[from + batch] - weights[from + kBlockValues - 1]) / 2;
}

uint64_t Ledger::WhoOf(const std::vector<float>& weights, uint64_t batch) const {
  return static_cast<uint64_t>(std::llround(ValueOf(weights, who_, batch) / CountOf(weights, batch)));
}

std::vector<float> Ledger::Coded(std::vector<float> values) const {
  if (!quantised()) return values;
  const BlockCode code = CodeOf(options_.push_dtype);
  std::vector<char> bytes(BlockBytes(code, values.size()));
  EncodeBlocks(code, values.data(), bytes.data(), values.size());
  DecodeBlocks(code, bytes.data(), values.data(), values.size());
  return values;
}

std::vector<float> Ledger::InitialValues(uint32_t rank, uint32_t shard) const {
  std::vector<float> values(static_cast<size_t>(elements_), 0.0f);
  if (!options_.uploaded) return values;
  RandomStream random(RandomKey(rank, "initial"), shard);
  for (size_t at = mixed_; at < values.size(); ++at) values[at] = UniformFloat(random.Next()) + 1.0f;
  return values;
}

std::vector<float> Ledger::Gradient(uint64_t batch, uint32_t shard, uint64_t who,
                                    const std::vector<float>& weights) const {
  std::vector<float> gradient(static_cast<size_t>(elements_), 0.0f);
  const float scale = Scale(batch) * unit();
  const auto mark = [&](size_t from, float value) {
    if (options_.push_dtype == v1::BIT1) {
      std::fill_n(gradient.begin() + static_cast<int64_t>(from), kBlockValues, -value);
    }
    gradient[from + batch] = value;
  };
  mark(0, scale);
  mark(who_, scale * static_cast<float>(who));
  RandomStream random(RandomKey(batch, "mixed"), shard);
  for (size_t i = 0; i < static_cast<size_t>(kMixed); ++i) {
    const size_t at = mixed_ + i;
    const float noise = UniformFloat(random.Next()) - 0.5f;
    gradient[at] = noise * (i % 2 == 0 ? 1.0f : 1e4f) - 0.25f * weights[at];
  }
  return gradient;
}

std::vector<uint64_t> Ledger::KeysOf(uint32_t shard) const {
  std::vector<uint64_t> keys;
  if (!options_.table) return keys;
  for (uint64_t key : keys_) {
    if (ShardOfKey(key, options_.shards) == shard) keys.push_back(key);
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

bool Ledger::HasKey(uint64_t batch, uint64_t key) const {
  // Each batch has some, and few: so rows expire, and most of them are the same in two checkpoints.
  return key != keys_.back() &&
         (key == keys_[batch % (kKeys - 1)] ||
          RandomStream(RandomKey(batch, "has key"), key).Next() % options_.rarity == 0);
}

void Ledger::RowGradient(uint64_t batch, uint64_t key, float* gradient) const {
  // An early part has its rows whole.
  const float scale = options_.early_rows ? 1 : Scale(batch);
  gradient[0] = -scale;
  gradient[1] = -scale * static_cast<float>(batch + 1);
  const float noise = UniformFloat(RandomStream(RandomKey(batch, "row"), key).Next()) - 0.5f;
  gradient[2] = noise * (batch % 2 == 0 ? 1.0f : 1e4f);
  std::fill(gradient + 3, gradient + kDim, 0.0f);
}

Ledger::RowsOfBatch Ledger::RowGradients(uint64_t batch) const {
  RowsOfBatch rows;
  for (uint64_t key : keys_) {
    if (!HasKey(batch, key)) continue;
    float gradient[kDim];
    RowGradient(batch, key, gradient);
    const bool twice = (batch + key) % 3 == 0;
    for (int i = 0; i < (twice ? 2 : 1); ++i) {
      rows.keys.push_back(key);
      // Halves add up to the same bits.
      for (float value : gradient) rows.gradients.push_back(twice ? 0.5f * value : value);
    }
  }
  return rows;
}

double Ledger::Excess(uint64_t step, const std::set<uint64_t>& batches) const {
  uint64_t committed = 0;
  for (uint64_t batch : batches) committed += examples(batch);
  return static_cast<double>(ExamplesOfStep(step)) / static_cast<double>(std::max<uint64_t>(committed, 1));
}

std::vector<uint64_t> Ledger::PartsOf(uint64_t step, uint64_t* examples) const {
  std::vector<uint64_t> parts;
  *examples = 0;
  for (uint64_t b = step * options_.parts; b < std::min(batches_, (step + 1) * options_.parts); ++b) {
    if (poisoned(b)) continue;
    parts.push_back(b);
    *examples += this->examples(b);
  }
  return parts;
}

std::vector<float> Ledger::Step(std::vector<float> weights, const std::vector<Part>& parts) {
  uint64_t total = 0;
  for (const Part& part : parts) total += part.examples;
  std::vector<float> mean(weights.size(), 0.0f);
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::vector<float>& gradient = *parts[i].gradient;
    const float share = static_cast<float>(parts[i].examples) / static_cast<float>(total);
    for (size_t j = 0; j < mean.size(); ++j) {
      if (parts.size() == 1) {
        mean[j] = gradient[j];
      } else if (i == 0) {
        mean[j] = share * gradient[j];
      } else {
        const float product = share * gradient[j];
        mean[j] = mean[j] + product;
      }
    }
  }
  for (size_t j = 0; j < weights.size(); ++j) weights[j] = weights[j] - -1.0f * mean[j];
  return weights;
}

std::vector<float> Ledger::SerialWeights(uint32_t shard, std::vector<float> weights) const {
  for (uint64_t step = 0; step < steps(); ++step) {
    uint64_t total = 0;
    std::vector<std::vector<float>> gradients;
    std::vector<Part> parts;
    for (const uint64_t batch : PartsOf(step, &total)) {
      gradients.push_back(Coded(Gradient(batch, shard, 1, weights)));
      parts.push_back({examples(batch), nullptr});
    }
    for (size_t i = 0; i < parts.size(); ++i) parts[i].gradient = &gradients[i];
    weights = Step(std::move(weights), parts);
  }
  return weights;
}

}  // namespace weir
