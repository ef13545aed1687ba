#include "worker/local_steps.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "common/optimizer/kernels.h"
#include "common/protocol/mode_traits.h"
#include "worker/local_rule.h"

namespace weir {
namespace {

constexpr char kField[] = "local.inner";

// A thread takes some 20 us for so many elements, a few times as long as it takes to wake.
constexpr size_t kRun = 64 * 1024;

}  // namespace

absl::Status LocalSteps::Check(const v1::JobConfig& config, const ModelSpec& model) {
  return ResolveGroups(config.local().inner(), model, kField).status();
}

absl::StatusOr<std::unique_ptr<LocalSteps>> LocalSteps::Create(const v1::JobConfig& config,
                                                               const JobSteps& steps,
                                                               std::unique_ptr<GradientComputer> of,
                                                               ComputeTime* time) {
  const v1::OptimizerConfig& inner = config.local().inner();
  WEIR_ASSIGN_OR_RETURN(Optimizer optimizer, Optimizer::Create(inner, BestKernels()));
  WEIR_ASSIGN_OR_RETURN(LearningRateSchedule schedule,
                        LearningRateSchedule::Create(inner.learning_rate(), inner.schedule(),
                                                     steps.steps * config.local().steps()));
  WEIR_ASSIGN_OR_RETURN(std::vector<TensorSettings> settings, ResolveGroups(inner, of->spec(), kField));
  WEIR_ASSIGN_OR_RETURN(std::shared_ptr<float> weights, of->TakeMemory());
  return std::unique_ptr<LocalSteps>(new LocalSteps(config, steps, std::move(of), time, std::move(optimizer),
                                                    std::move(schedule), std::move(settings),
                                                    std::move(weights)));
}

LocalSteps::LocalSteps(const v1::JobConfig& config, const JobSteps& steps,
                       std::unique_ptr<GradientComputer> of, ComputeTime* time, Optimizer optimizer,
                       LearningRateSchedule schedule, std::vector<TensorSettings> settings,
                       std::shared_ptr<float> weights)
    : config_(config),
      steps_(steps),
      of_(std::move(of)),
      time_(time),
      optimizer_(std::move(optimizer)),
      schedule_(std::move(schedule)),
      settings_(std::move(settings)),
      threads_(static_cast<int>(config.compute().threads())),
      local_(std::move(weights)) {
  for (size_t tensor = 0; tensor < spec().tensors.size(); ++tensor) {
    const auto begin = static_cast<size_t>(spec().offset(tensor)),
               end = static_cast<size_t>(spec().offset(tensor + 1));
    for (size_t first = begin; first < end; first += kRun) {
      runs_.push_back({tensor, first, std::min(kRun, end - first)});
    }
  }
}

LocalSteps::State* LocalSteps::StateFor(const Work& work) {
  const bool keeps = config_.local().keep_state();
  const bool by_part = keeps && TraitsOf(config_).works_on_parts;
  for (auto it = states_.begin(); by_part && it != states_.end();) {
    // Other workers have computed these parts since.
    it = it->second.clock + 1 < work.clock ? states_.erase(it) : std::next(it);
  }
  State& state = states_[by_part ? work.part : 0];
  if (state.steps == 0 || !keeps) {
    state.steps = 0;
    state.slots.resize(optimizer_.slots().size());
    for (std::vector<float>& slot : state.slots) slot.assign(static_cast<size_t>(spec().elements()), 0.0f);
  }
  return &state;
}

absl::StatusOr<double> LocalSteps::Compute(const Work& work, float* weights, float* gradient, WorkRows*,
                                           const Traffic& traffic) {
  gradient_ = gradient;
  State* const state = StateFor(work);
  const uint64_t batch_size = config_.data().batch_size();
  double loss = 0;
  bool finite = true;
  uint64_t taken = 0;
  for (uint64_t done = 0; done < work.examples && finite; done += batch_size, ++taken) {
    Work step = work;
    step.batch = work.batch * config_.local().steps() + taken;
    step.first_example += done;
    step.examples = std::min(batch_size, work.examples - done);
    step.examples_left -= done;
    Traffic own;
    // The pass before, of this work or of another one, may have had the local weights.
    own.new_weights = true;
    if (taken == 0) {
      own.await_weights = traffic.await_weights;
      own.forward_done = traffic.forward_done;
    }
    if (done + step.examples == work.examples) own.next_weights = traffic.next_weights;
    float* const from = taken == 0 ? weights : local_.get();
    WEIR_ASSIGN_OR_RETURN(const double sum, of_->Compute(step, from, gradient, nullptr, own));
    loss += sum;
    if (time_ != nullptr) time_->Start();
    finite = Apply(work, taken, from, gradient, state);
    if (time_ != nullptr) time_->Stop();
  }
  if (finite) {
    state->clock = work.clock;
    Subtract(weights, gradient);
  } else {
    *state = State();
    // Not all examples have a loss.
    loss = std::numeric_limits<double>::quiet_NaN();
  }
  if (traffic.gradient_ready) {
    for (size_t tensor = spec().tensors.size(); tensor-- > 0;) traffic.gradient_ready(tensor);
  }
  return loss;
}

bool LocalSteps::Apply(const Work& work, uint64_t taken, const float* from, const float* gradient,
                       State* state) {
  const uint64_t before = work.batch / steps_.batches_of_step * config_.local().steps();
  const double rate = schedule_.Rate(static_cast<double>(before + taken));
  std::atomic<bool> finite{true};
  threads_.ParallelFor(static_cast<int64_t>(runs_.size()), [&](int64_t i) {
    const Run& run = runs_[static_cast<size_t>(i)];
    const TensorSettings& settings = settings_[run.tensor];
    float* const to = local_.get() + run.first;
    if (settings.frozen) {
      if (from != local_.get()) std::copy_n(from + run.first, run.n, to);
      return;
    }
    ApplyArgs args;
    args.n = run.n;
    args.weights_in = from + run.first;
    args.weights_out = to;
    args.gradient = gradient + run.first;
    for (size_t slot = 0; slot < state->slots.size(); ++slot) {
      args.slots_in[slot] = args.slots_out[slot] = state->slots[slot].data() + run.first;
    }
    args.learning_rate = rate * settings.learning_rate_factor;
    args.weight_decay = settings.weight_decay;
    args.l2 = settings.l2;
    args.clip_weights = settings.clip_weights;
    args.t = state->steps + 1;
    if (!optimizer_.Apply(args)) finite = false;
  });
  ++state->steps;
  return finite;
}

void LocalSteps::Subtract(const float* base, float* gradient) {
  threads_.ParallelFor(static_cast<int64_t>(runs_.size()), [&](int64_t i) {
    const Run& run = runs_[static_cast<size_t>(i)];
    const float* const result = local_.get();
    for (size_t at = run.first; at < run.first + run.n; ++at) gradient[at] = base[at] - result[at];
  });
}

std::vector<ConstTensor> LocalSteps::Gradient() {
  return TensorsOf(spec(), absl::Span<const float>(gradient_, static_cast<size_t>(spec().elements())));
}

}  // namespace weir
