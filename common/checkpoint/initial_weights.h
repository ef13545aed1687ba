#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/model/model_spec.h"
#include "common/system/file_system.h"

namespace weir {

// The rows of an embedding table: `dim` values for each key. Keys may come in any order, each once.
struct InitialRows {
  std::string table;
  uint32_t dim = 0;
  std::vector<uint64_t> keys;
  std::vector<float> values;  // keys.size() x dim
};

// Writes a checkpoint that holds weights, rows and no training: what a job takes with checkpoint.init_from,
// to begin with values that no initializer makes. `weights`: the model's tensors end to end. The checkpoint
// is DIRECTORY/step-00000000; the folder is made. AlreadyExists: it holds such a checkpoint, which stays.
// InvalidArgument: a key comes twice, or no table has such a dim.
absl::Status WriteInitialWeights(FileSystem& fs, const std::string& directory, const ModelSpec& model,
                                 absl::Span<const float> weights,
                                 const std::vector<InitialRows>& tables = {});

}  // namespace weir
