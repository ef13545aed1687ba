#pragma once

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

}  // namespace weir
