#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/system/float_pool.h"
#include "common/threads/mutex.h"

namespace weir {

// Error feedback (Seide et al. 2014; Karimireddy et al. 2019): the next push adds to its gradient what
// quantised pushes have rounded away. There is such a residual for each part of a step (outside sync there is
// one part), and each shard. Belongs to one membership of one worker, and so ends with it. Thread-safe.
//
// A push takes its residuals, and each shard's answer puts one back: what is left of the sum of gradient and
// residual if the push took effect there, and otherwise the residual as it was. So a push that begins while
// another one of its part is under way starts from zero, and the two remainders add up. A residual is dropped
//
// - if the shard has gone back to a checkpoint since, and so has a later incarnation than the residual's
//   weights;
// - in sync, if this worker did not push the part in the step before.
//
// If two workers push the part of a step, the shard takes one push and answers both with OK. The other worker
// keeps what its own push lacked, which stands for that of the one taken: the batch and the weights were the
// same. The worker that has the part in the next step uses its residual; the other one drops it.
class Residuals {
 public:
  // shard_elements: by shard. consecutive: sync.
  Residuals(const std::vector<int64_t>& shard_elements, bool consecutive);

  struct Key {
    uint32_t part = 0, shard = 0;
    uint64_t clock = 0, incarnation = 0;  // of the push's work, and of the weights that it was computed from
  };
  // The residual in the shard's order; null: zeros.
  std::shared_ptr<float> Take(const Key& key);
  // values: not null, and nobody else holds them.
  void Put(const Key& key, std::shared_ptr<float> values);

  // Memory for a shard's residual, with any contents.
  std::shared_ptr<float> New(uint32_t shard) { return pools_[shard]->Take(); }

 private:
  struct Residual {
    uint64_t clock, incarnation;
    std::shared_ptr<float> values;
  };

  const std::vector<int64_t> shard_elements_;
  const bool consecutive_;
  std::vector<std::unique_ptr<FloatPool<>>> pools_;
  Mutex mutex_;
  // By part and shard.
  std::map<std::pair<uint32_t, uint32_t>, Residual> residuals_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
