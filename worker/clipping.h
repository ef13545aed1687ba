#pragma once

#include "proto/job_config.pb.h"

namespace weir {

// The norm to which a worker clips a gradient before it pushes it; 0: to none. With train.clip "mean" the
// servers clip the mean of a step.
inline float PushClipNorm(const v1::TrainConfig& train) {
  return train.clip() == v1::TrainConfig::CLIP_MEAN ? 0 : train.clip_norm();
}

// Whether a worker clips a gradient in any way, for which it must have the whole of it.
inline bool ClipsPushes(const v1::TrainConfig& train) {
  return train.clip_value() > 0 || PushClipNorm(train) > 0;
}

}  // namespace weir
