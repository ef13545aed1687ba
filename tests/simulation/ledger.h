#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/codec/value_codec.h"
#include "common/model/model_spec.h"

namespace weir {

// The job that the simulation trains: plain SGD at the learning rate -1, so that weights are sums of the
// pushed gradients. Every shard holds, at local positions,
//
//   [0, B)        the count: the push of batch b adds 1 at b;
//   [B, 2B)       who: it adds its worker's number at B + b, which is the place of its Join in RunLog::joins;
//   then kMixed   values that depend on the weights that were read, and whose sums depend on the order.
//
// Where pushes are quantised, each of the three begins in a block of its own, and the first two are in units
// that the type carries exactly. With 1 bit a push takes one unit from all other values of its block, the
// last of which belongs to no batch: counts are differences to it.
//
// In sync a gradient is scaled so that this holds after the mean over its step's parts. Where a worker
// uploads the initial values, those of the last kind are its own.
//
// Where the job has an embedding table, its rows start at zeros and are trained in the same way, with
//
//   column 0   the count: the push of batch b adds 1 to each of the batch's keys;
//   column 1   it adds b + 1;
//   column 2   a value of the batch and the key, whose sums depend on the order;
//   others     0. They make the rows a large part of a checkpoint, so that it pays to save their changes
//   alone.
//
// So a shard's rows follow from the pushes in its weights, in their order (row_model.h), unless they are
// early: then they also have some of the parts whose dense values are not there. Pure.
class Ledger {
 public:
  static constexpr int64_t kMixed = 8;
  // Of the table. No batch has the last key. Eight buckets have three keys each, so that quotas evict rows;
  // the last key is in a bucket of its own.
  static constexpr size_t kKeys = 25, kDim = 64;

  // The limits that decide which keys have rows, as in TableConfig.
  struct RowRules {
    uint32_t admit_after = 0;
    uint64_t expire_after_steps = 0;
    uint64_t max_rows = 0;
  };

  struct Options {
    bool sync = false;
    uint32_t shards = 1;
    uint32_t parts = 1;
    uint64_t batch_size = 1;
    uint64_t total_examples = 1;
    // (batch, shard): this batch's gradient is not finite on the shard, whichever worker computes it.
    std::set<std::pair<uint64_t, uint32_t>> poisoned;
    // A worker uploads the initial values; otherwise they are zeros.
    bool uploaded = false;
    // The job has a table.
    bool table = false;
    RowRules rules;
    // Besides its first, a batch has each key with a probability of 1 / this.
    uint32_t rarity = 8;
    // sync: rows take effect as the parts of a step arrive (consistency.tables "async").
    bool early_rows = false;
    // The type of the pushes' values, and whether the next push has what one rounds away.
    v1::Dtype push_dtype = v1::F32;
    bool feedback = false;
  };
  explicit Ledger(Options options);

  const Options& options() const { return options_; }
  const ModelSpec& model() const { return model_; }
  uint64_t batches() const { return batches_; }
  uint64_t steps() const { return (batches_ + options_.parts - 1) / options_.parts; }
  // On each shard.
  int64_t elements() const { return elements_; }
  // Chunks of gradients and of weights start and end at multiples of this: at blocks.
  int64_t chunk_unit() const;
  uint64_t examples(uint64_t batch) const;
  // Some shard refuses the batch.
  bool poisoned(uint64_t batch) const;
  bool poisoned(uint64_t batch, uint32_t shard) const { return options_.poisoned.count({batch, shard}) > 0; }

  bool quantised() const { return IsQuantised(options_.push_dtype); }
  // How many units of the batch a shard with these weights has, and the number of the worker that pushed it,
  // if it has it.
  float CountOf(const std::vector<float>& weights, uint64_t batch) const {
    return ValueOf(weights, 0, batch);
  }
  float unit() const;
  uint64_t WhoOf(const std::vector<float>& weights, uint64_t batch) const;
  bool IsMark(size_t at) const { return at < mixed_; }  // the count, or who
  bool IsWho(size_t at) const { return at >= who_ && at < mixed_; }
  // These values of a push without feedback, as a shard gets them.
  std::vector<float> Coded(std::vector<float> values) const;

  // A shard's part of the initial values that the worker of this rank gives.
  std::vector<float> InitialValues(uint32_t rank, uint32_t shard) const;
  // A shard's part of the gradient that the worker of this number computes from these weights of the shard.
  std::vector<float> Gradient(uint64_t batch, uint32_t shard, uint64_t who,
                              const std::vector<float>& weights) const;

  // The keys of the table that are the shard's, rising; of all shards: in an order that does not rise.
  std::vector<uint64_t> KeysOf(uint32_t shard) const;
  const std::vector<uint64_t>& keys() const { return keys_; }
  bool HasKey(uint64_t batch, uint64_t key) const;
  // A batch's keys, of all shards, and their gradients; some keys come twice, and have half of their gradient
  // each time.
  struct RowsOfBatch {
    std::vector<uint64_t> keys;
    std::vector<float> gradients;
  };
  RowsOfBatch RowGradients(uint64_t batch) const;
  // Of one of the batch's keys: kDim values.
  void RowGradient(uint64_t batch, uint64_t key, float* gradient) const;

  // sync: the factor by which a step's count exceeds 1 if only these parts of it were committed.
  double Excess(uint64_t step, const std::set<uint64_t>& batches) const;
  // sync: the parts of a step that are not refused, and their examples.
  std::vector<uint64_t> PartsOf(uint64_t step, uint64_t* examples) const;
  // sync: these weights after a step, by a plain loop over its parts as shards got them.
  struct Part {
    uint64_t examples = 0;
    const std::vector<float>* gradient = nullptr;
  };
  static std::vector<float> Step(std::vector<float> weights, const std::vector<Part>& parts);
  // sync without feedback: the shard's weights after all steps, by a plain loop from these initial values;
  // all batches are worker 1's. Without rows.
  std::vector<float> SerialWeights(uint32_t shard, std::vector<float> weights) const;

 private:
  uint64_t ExamplesOfStep(uint64_t step) const;
  // sync: what scales a batch's gradient so that the mean over its step has it whole; otherwise 1.
  float Scale(uint64_t batch) const;
  // Of the count, or, from who_ on, of who.
  float ValueOf(const std::vector<float>& weights, size_t from, uint64_t batch) const;

  const Options options_;
  const uint64_t batches_;
  // Where who and the mixed values begin.
  const size_t who_, mixed_;
  int64_t elements_;
  ModelSpec model_;
  std::vector<uint64_t> keys_;
};

}  // namespace weir
