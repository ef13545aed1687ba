#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/model/model_spec.h"
#include "common/system/file_system.h"

namespace weir {

// Writes a checkpoint that holds weights and no training: what a job takes with checkpoint.init_from, to
// begin with values that no initializer makes. `weights`: the model's tensors end to end. The checkpoint is
// DIRECTORY/step-00000000; the folder is made. AlreadyExists: it holds such a checkpoint, which stays.
absl::Status WriteInitialWeights(FileSystem& fs, const std::string& directory, const ModelSpec& model,
                                 absl::Span<const float> weights);

}  // namespace weir
