#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/compute_time.h"
#include "client/types.h"
#include "common/optimizer/optimizer.h"
#include "common/optimizer/schedule.h"
#include "common/threads/thread.h"
#include "proto/job_config.pb.h"
#include "worker/gradient_computer.h"

namespace weir {

// The steps that a worker takes by itself between a pull and a push (Stich 2019; Douillard et al. 2023,
// "DiLoCo"). Work is over up to H * B examples (H = local.steps, B = data.batch_size). From the weights that
// were pulled, an optimizer step by local.inner is taken on each B of them. The gradient of the work is the
// difference base - result, to which the servers apply the outer rule.
//
// Optimizer slots and Adam's t begin anew with each work. So the result depends only on the base, on
// (seed, work.batch) and on the job's length, whichever worker computes it. A part of a sync step that a dead
// worker left is computed again with the same bits.
//
// With local.keep_state slots and t continue from work to work, as in DiLoCo. Outside sync there is one such
// state, in sync one for each part, since the parts of a step begin at the same weights, each as if it had a
// worker of its own. A part's state begins anew
//
// - with this object: the worker's membership ends where it is fenced, and where the job goes back to a
//   checkpoint, whose weights know nothing of the steps since;
// - in sync, if the part was not computed here in the step before;
// - after a gradient that is not finite.
//
// Step h of the work takes the randomness (dropout) of batch work.batch * H + h. Its learning rate is that of
// time floor(work.batch / steps.batches_of_step) * H + h: how many steps a worker has taken before, if all
// workers are equally fast.
//
// If a step's gradient is not finite, the steps end, and that gradient is pushed, for the client to refuse.
//
// Not thread-safe; runs compute.threads threads inside a call.
class LocalSteps final : public GradientComputer {
 public:
  // `of` computes the gradient of each step; all tensors of its spec() are parameters, and it rounds no
  // gradients. `time` also counts the time of the inner rule; null: of nothing. `config` and `time` outlive
  // this object. Requires: TakesLocalSteps(config), no tables. InvalidArgument: as Check().
  // ResourceExhausted: no memory for the weights.
  static absl::StatusOr<std::unique_ptr<LocalSteps>> Create(const v1::JobConfig& config,
                                                            const JobSteps& steps,
                                                            std::unique_ptr<GradientComputer> of,
                                                            ComputeTime* time);
  // InvalidArgument: a group of local.inner fits no tensor of the model.
  static absl::Status Check(const v1::JobConfig& config, const ModelSpec& model);

  const ModelSpec& spec() const override { return of_->spec(); }
  uint64_t train_examples() const override { return of_->train_examples(); }
  absl::StatusOr<std::shared_ptr<float>> TakeMemory() override { return of_->TakeMemory(); }
  bool on_host() const override { return of_->on_host(); }
  // `rows` is null. The weights are read during the first step, and stay as they are. The functions of
  // `traffic` are called as for one gradient: forward_done in the first step, next_weights in the last one,
  // gradient_ready after it.
  absl::StatusOr<double> Compute(const Work& work, float* weights, float* gradient, WorkRows* rows,
                                 const Traffic& traffic) override;
  std::vector<ConstTensor> Gradient() override;

 private:
  LocalSteps(const v1::JobConfig& config, const JobSteps& steps, std::unique_ptr<GradientComputer> of,
             ComputeTime* time, Optimizer optimizer, LearningRateSchedule schedule,
             std::vector<TensorSettings> settings, std::shared_ptr<float> weights);
  // That of the inner rule.
  struct State {
    uint64_t clock = 0;  // of the last work
    uint64_t steps = 0;  // Adam's t; 0: the state is new
    std::vector<std::vector<float>> slots;
  };
  // That with which the work begins.
  State* StateFor(const Work& work);
  // Steps local_ from these weights, which may be local_ itself. `taken`: steps of this work before this one.
  // Returns whether the gradient was finite; if not, the slots are invalid.
  bool Apply(const Work& work, uint64_t taken, const float* from, const float* gradient, State* state);
  // gradient = base - local_.
  void Subtract(const float* base, float* gradient);

  const v1::JobConfig& config_;
  const JobSteps steps_;
  const std::unique_ptr<GradientComputer> of_;
  ComputeTime* const time_;
  const Optimizer optimizer_;
  const LearningRateSchedule schedule_;
  // Elements of one tensor that a thread steps at once.
  struct Run {
    size_t tensor = 0, first = 0, n = 0;
  };
  const std::vector<TensorSettings> settings_;  // by tensor
  std::vector<Run> runs_;
  ThreadPool threads_;

  // The worker's own weights.
  const std::shared_ptr<float> local_;
  // By part. One, if each work begins anew.
  std::map<uint32_t, State> states_;
  // Of the last Compute().
  const float* gradient_ = nullptr;
};

}  // namespace weir
