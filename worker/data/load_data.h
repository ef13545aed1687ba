#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job_config.pb.h"
#include "worker/data/dataset.h"

namespace weir {

struct Datasets {
  Dataset train;
  // If the config names them.
  std::optional<Dataset> test, validation;
};

// Reads the data that `config` names; `config` has passed the job config's checks. Relative paths start at
// base_dir. The loss says whether labels are classes (softmax_cross_entropy) or the label column is a target:
// any number (mean_squared_error) or 0 and 1 (sigmoid_cross_entropy); csv only.
//
// All sets have the same shape and number of classes, which is data.classes, or the largest label of the
// training set plus one. `scale` acts on features, not on targets. Errors name the field or the file, what
// was seen and what is allowed: InvalidArgument, NotFound, DataLoss (a damaged file).
absl::StatusOr<Datasets> LoadData(const v1::DataConfig& config, const std::string& base_dir,
                                  v1::ModelConfig::Loss loss);

// The checks that LoadData() makes of the loss, and of the shapes of files before their values matter.
absl::Status CheckLoss(const v1::DataConfig& config, v1::ModelConfig::Loss loss);
absl::Status CheckIdxShapes(const std::string& images_path, const std::vector<int64_t>& images,
                            const std::string& labels_path, const std::vector<int64_t>& labels);
// `field`: that of the set with the shape `other`.
absl::Status CheckSameShape(const char* field, const std::vector<int64_t>& train,
                            const std::vector<int64_t>& other);
// The shape of one example.
std::vector<int64_t> IdxExampleShape(const std::vector<int64_t>& images);

}  // namespace weir
