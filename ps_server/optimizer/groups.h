#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/model_spec.h"

namespace weir {

namespace v1 {
class OptimizerConfig;
}

// The settings of one tensor in the optimizer's config.
struct TensorSettings {
  double learning_rate_factor = 1;  // multiplies the scheduled learning rate
  double weight_decay = 0;
  float clip_weights = 0;  // 0: weights are not clipped
  bool frozen = false;     // keeps its initial value: no update is applied
};

// The settings of each tensor of `model`, in its order: from the first of `optimizer.groups` that fits the
// tensor's name, or else from the optimizer itself. InvalidArgument: a group fits no tensor (probably a
// misspelt name); the message lists the names.
absl::StatusOr<std::vector<TensorSettings>> ResolveGroups(const v1::OptimizerConfig& config,
                                                          const ModelSpec& model);

// Whether a glob fits the whole of `text`: '*' fits any run of characters, including '/' and the empty run,
// '?' fits any one character, every other character fits itself. Time: at most length of pattern * length of
// text.
bool GlobMatches(absl::string_view pattern, absl::string_view text);

}  // namespace weir
