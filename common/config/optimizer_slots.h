#pragma once

#include <cstdint>
#include <vector>

#include "proto/job_config.pb.h"

namespace weir {

// The values that an optimizer keeps for each weight, in its own order. The names are in checkpoints, so they
// must never change.
inline std::vector<const char*> OptimizerSlots(v1::OptimizerConfig::Kind kind) {
  switch (kind) {
    case v1::OptimizerConfig::KIND_MOMENTUM:
    case v1::OptimizerConfig::KIND_NESTEROV:
      return {"momentum"};
    case v1::OptimizerConfig::KIND_ADAGRAD:
      return {"accumulator"};
    case v1::OptimizerConfig::KIND_RMSPROP:
      return {"mean_square"};
    case v1::OptimizerConfig::KIND_ADAM:
    case v1::OptimizerConfig::KIND_ADAMW:
      return {"m", "v"};
    case v1::OptimizerConfig::KIND_SGD:
    case v1::OptimizerConfig::KIND_UNSPECIFIED:
      break;
  }
  return {};
}

// The float32 values of a table's row: its own, and those that the optimizer keeps beside them.
inline uint64_t TableRowValues(const v1::TableConfig& table) {
  const uint64_t dim = table.dim();
  switch (table.optimizer().type()) {
    case v1::TableOptimizer::KIND_MOMENTUM:
    case v1::TableOptimizer::KIND_ADAGRAD:
      return 2 * dim;
    case v1::TableOptimizer::KIND_ROWWISE_ADAGRAD:
      return dim + 1;
    case v1::TableOptimizer::KIND_ADAM:
    case v1::TableOptimizer::KIND_ADAMW:
      return 3 * dim + 1;
    case v1::TableOptimizer::KIND_FTRL:
      return 3 * dim;
    case v1::TableOptimizer::KIND_SGD:
    case v1::TableOptimizer::KIND_UNSPECIFIED:
      break;
  }
  return dim;
}

}  // namespace weir
