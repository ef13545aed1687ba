#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/model_spec.h"
#include "common/optimizer/kernel_table.h"

namespace weir {

namespace v1 {
class OptimizerConfig;
}  // namespace v1

// The settings of one tensor in the optimizer's config.
struct TensorSettings {
  double learning_rate_factor = 1;  // multiplies the scheduled learning rate
  double weight_decay = 0;
  float l2 = 0;
  float clip_weights = 0;  // 0: weights are not clipped
  bool frozen = false;     // keeps its initial value: no update is applied
};

// The settings of each tensor of `model`, in its order: from the first of `optimizer.groups` that fits the
// tensor's name, or else from the optimizer itself. InvalidArgument: a group fits no tensor (probably a
// misspelt name); the message lists the names. `field`: where the optimizer is in the job's config.
absl::StatusOr<std::vector<TensorSettings>> ResolveGroups(const v1::OptimizerConfig& config,
                                                          const ModelSpec& model,
                                                          absl::string_view field = "optimizer");

// Whether a glob fits the whole of `text`: '*' fits any run of characters, including '/' and the empty run,
// '?' fits any one character, every other character fits itself. Time: at most length of pattern * length of
// text.
bool GlobMatches(absl::string_view pattern, absl::string_view text);

// A run of elements of one tensor. Arrays hold n elements each. An output may be the same array as its input
// (in place); no other overlap is allowed.
struct ApplyArgs {
  size_t n = 0;
  const float* weights_in = nullptr;
  float* weights_out = nullptr;
  const void* gradient = nullptr;  // n float32 in the machine's byte order, at any address, read once
  // As many as slots(), in the same order.
  const float* slots_in[kMostSlots] = {};
  float* slots_out[kMostSlots] = {};
  double learning_rate = 0;  // for this update and tensor: the schedule's, times the group's factor
  double weight_decay = 0;   // for this tensor
  float l2 = 0;              // for this tensor
  float clip_weights = 0;    // for this tensor; 0: weights are not clipped
  PastCaches past = PastCaches::kNothing;
  uint64_t t = 1;  // the number of this update, counted from 1; for Adam's bias correction
};

// The arithmetic of one optimizer: from weights, slots and a gradient g to new weights and slots, in one
// pass, in float32. Element i of the outputs depends only on element i of the inputs, with the same bits for
// every division into runs and every level of the kernels. Immutable, hence thread-safe; copyable.
//
// With lr the learning rate, wd the weight decay and w the weight before the step (all elementwise):
//
//   sgd       w -= lr g
//             Robbins and Monro 1951.
//   momentum  v = mu v + g;  w -= lr v
//             Polyak 1964, as in Sutskever et al. 2013 but with lr outside of v, so that a schedule acts at
//             once.
//   nesterov  v = mu v + g;  w -= lr (g + mu v)
//             Nesterov 1983, in the form of Sutskever et al. 2013 with the gradient taken at the looked-ahead
//             weights (Bengio et al. 2013).
//   adagrad   G += g^2;  w -= lr g / (sqrt(G) + epsilon)
//             Duchi et al. 2011, diagonal form.
//   rmsprop   s = rho s + (1 - rho) g^2;  w -= lr g / (sqrt(s) + epsilon)
//             Tieleman and Hinton 2012, lecture 6.5; epsilon outside of the root.
//   adam      m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//             w -= lr m^ / (sqrt(v^) + epsilon),  m^ = m / (1 - beta1^t),  v^ = v / (1 - beta2^t)
//             Kingma and Ba 2015, algorithm 1.
//             With amsgrad: v_max = max(v_max, v) takes the place of v under the root (Reddi et al. 2018,
//             with the bias corrected as in PyTorch: that of v_max as if it were v).
//   adamw     adam, with weight decay: Loshchilov and Hutter 2019, algorithm 2 (there the decay is scaled
//             by the schedule's factor only; here, as in most libraries, by the whole lr).
//   lion      w -= lr sgn(beta1 m + (1 - beta1) g);  m = beta2 m + (1 - beta2) g
//             Chen et al. 2023; sgn(0) is 0.
//   lamb      w -= lr f u,  u = m^ / (sqrt(v^) + epsilon) + wd w,  with m^ and v^ of adam
//             You et al. 2020, algorithm 2, whose phi is the identity. f is |w| / |u| over a whole tensor,
//             which Update() is for; the caller makes it a factor of the learning rate.
//
// Each other optimizer also subtracts lr wd w from the weight: the decay is decoupled from the gradient
// (Loshchilov and Hutter 2019). So adamw differs from adam in name only. With l2, g is gradient + l2 w: the
// decay is coupled, as the gradient of a penalty l2/2 w^2 would be. Last, with clip_weights, the weight
// becomes the nearest value in [-clip_weights, clip_weights] (Arjovsky et al. 2017, algorithm 1).
class Optimizer {
 public:
  // `kernels` must outlive the optimizer; the tables of kernels.h do. InvalidArgument: no type. All values
  // must be in the ranges of proto/job_config.proto, which the config's reader checks.
  static absl::StatusOr<Optimizer> Create(const v1::OptimizerConfig& config, const Kernels& kernels);

  // The names of the state that it keeps for each weight, which begins at 0
  // (common/config/optimizer_slots.h). At most kMostSlots.
  const std::vector<const char*>& slots() const { return slots_; }

  // Returns whether all of the gradient was finite. If not, the outputs are invalid. The check needs no
  // separate pass.
  bool Apply(const ApplyArgs& args) const { return step_(StepOf(args)); }

  // Whether f of lamb is to be measured.
  bool scales_by_norms() const { return update_ != nullptr; }
  // Only if scales_by_norms(): weights_out gets u, and slots_out what Apply() would write there. Neither the
  // learning rate nor clip_weights matter. Returns as Apply().
  bool Update(ApplyArgs args) const;

 private:
  explicit Optimizer(const v1::OptimizerConfig& config);
  StepArgs StepOf(const ApplyArgs& args) const;

  bool (*step_)(const StepArgs&) = nullptr;
  bool (*update_)(const StepArgs&) = nullptr;
  std::vector<const char*> slots_;
  // Factors that do not change from call to call. They are double until the call's own factors are applied.
  double keep_[2] = {0, 0};
  bool corrects_bias_ = false;
  float epsilon_;
};

}  // namespace weir
