#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "client/client.h"
#include "proto/job_config.pb.h"
#include "worker/data/dataset.h"
#include "worker/gradient_computer.h"
#include "worker/replicas.h"

namespace weir {

// Gradients over a dataset, computed by replicas of the job's model.
//
// A gradient depends only on the weights and on (seed, batch): the examples of a batch, their order and the
// dropout masks follow from these.
class DatasetGradients final : public GradientComputer {
 public:
  // All arguments outlive this object, and the replicas also outlive the memory that it gave. `train` and
  // `replicas` agree in shapes.
  DatasetGradients(const v1::JobConfig& config, const Dataset& train, Replicas* replicas);

  const ModelSpec& spec() const override { return replicas_->model().spec(); }
  uint64_t train_examples() const override { return static_cast<uint64_t>(train_.size()); }
  absl::StatusOr<std::shared_ptr<float>> TakeMemory() override { return replicas_->buffers().Take(); }
  bool on_host() const override { return replicas_->on_host(); }
  std::shared_ptr<WorkRows> RowsOf(const Work& work) override;
  std::optional<Work> LikelyNext(const Work& work) override;
  absl::StatusOr<double> Compute(const Work& work, float* weights, float* gradient, WorkRows* rows,
                                 const Traffic& traffic) override;
  std::vector<ConstTensor> Gradient() override;

 private:
  // Compute(), within its time.
  absl::StatusOr<double> ComputeTimed(const Work& work, float* weights, float* gradient, WorkRows* rows,
                                      const Traffic& traffic);
  // The position of the first example of the work that is likely to follow this one.
  uint64_t LikelyFirst(const Work& work);

  const v1::JobConfig& config_;
  const Dataset& train_;
  Replicas* const replicas_;

  ExampleOrder order_;
  // The examples of the current work, and of the work that is likely to be the next.
  std::vector<int32_t> indexes_, next_indexes_;
  // first_example of the current work, and of the one before it.
  std::optional<uint64_t> first_, last_first_;
};

// The gradients that a worker of the job pushes: those of `train`, or the results of local steps with them
// (LocalSteps, whose errors these are). Lifetimes as of DatasetGradients.
absl::StatusOr<std::unique_ptr<GradientComputer>> MakeGradients(const v1::JobConfig& config,
                                                                const Dataset& train, Replicas* replicas,
                                                                const Client& client);

}  // namespace weir
