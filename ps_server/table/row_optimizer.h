#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "common/optimizer/kernel_table.h"
#include "proto/job_config.pb.h"

namespace weir {

// The arithmetic of one optimizer on one row: from values, slots and the row's gradient g to new values and
// slots, in float32, with the same bits at every level of the kernels. The kernels are those of dense weights
// (common/optimizer/optimizer.h has their formulas), where a row's own history takes the place of the
// shard's: a row that has no gradient is not stepped. So momentum does not coast, weight decay acts only with
// an update, and Adam's t counts the row's updates. That is what makes an update's cost independent of the
// table's size; it differs from dense weights wherever a gradient is 0 for long.
//
// With lr the learning rate of the update, elementwise unless said otherwise:
//
//   sgd, momentum, adagrad   as for dense weights
//   adam                     as for dense weights, with the row's t
//   row-wise adagrad         h += mean(g^2), one h for the row;  w -= lr g / (sqrt(h) + epsilon)
//                            FBGEMM's EXACT_ROWWISE_ADAGRAD (Khudia et al. 2021). kernels_impl.cc has the
//                            order of the mean's sum; lr is divided first, as there
//   ftrl                     n' = n + g^2;  z += g - ((sqrt(n') - sqrt(n)) / lr) w
//                            w = 0 if |z| <= l1, else (sgn(z) l1 - z) / ((beta + sqrt(n')) / lr + l2)
//                            FTRL-proximal, McMahan et al. 2013, algorithm 1 with alpha = lr. z and n begin
//                            at 0, so an initial value of w acts only through the term with w
//
// All but ftrl also subtract lr wd w.
//
// Immutable, hence thread-safe; copyable.
class RowOptimizer {
 public:
  // `kernels` must outlive the optimizer; the tables of kernels.h do. dim >= 1. All values must be in the
  // ranges of proto/job_config.proto, which the config's reader checks.
  RowOptimizer(const v1::TableOptimizer& config, size_t dim, const Kernels& kernels);

  // Words of a row, in this order: dim values; the slots that each value has, dim words each; the row's own
  // word (row-wise adagrad: h; adam: t, a uint32). The slots of a new row are all zero bits.
  size_t dim() const { return step_.n; }
  size_t row_words() const { return dim() * (1 + value_slots_) + (row_word_ ? 1 : 0); }
  const Kernels& kernels() const { return *kernels_; }

  // InvalidArgument: not a learning rate for Apply(), which must be finite and at least 0, and with ftrl,
  // which divides by it, above 0 as a float32.
  absl::Status CheckRate(double learning_rate) const;

  // One step of a row of row_words(). `gradient`: dim() float32 at any address, all finite, which nobody else
  // writes to.
  void Apply(float* row, const void* gradient, double learning_rate) const;

 private:
  const Kernels* kernels_;
  bool (*kernel_)(const StepArgs&) = nullptr;
  StepArgs step_{};  // what is the same for all rows
  size_t value_slots_ = 0;
  bool row_word_ = false, corrects_bias_ = false;
  v1::TableOptimizer::Kind kind_;
  double beta1_ = 0, beta2_ = 0, weight_decay_ = 0;
};

}  // namespace weir
