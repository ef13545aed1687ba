#pragma once

// Plain types only, and no standard library beyond <cstddef>: this header is compiled with three sets of
// target flags. An inline function of a shared header could be compiled for instructions that this CPU lacks,
// and the linker could keep that copy.
#include <cstddef>

namespace weir {

// Which outputs are written past the caches. Used for a shard that is much larger than the caches, and whose
// new values are not written over the old ones. A cache would first read memory that is then overwritten, and
// keep values that are not read soon.
enum class PastCaches { kNothing, kSlots, kSlotsAndWeights };

// The slots of an optimizer, at most.
constexpr size_t kMostSlots = 3;

// Squares are summed in runs of this many elements.
constexpr size_t kSquaresRun = 16;

// One optimizer step over a run of n elements. The kernels (kernels_impl.cc) say what `rate`, `decay` and
// the other factors mean in each optimizer. An output may be the same array as its input (in place); no other
// overlap is allowed.
struct StepArgs {
  size_t n;
  const float* weights_in;
  float* weights_out;
  const void* gradient;  // n float32 in the machine's byte order, at any address: it may lie inside a
                         // received message
  const float* slots_in[kMostSlots];
  float* slots_out[kMostSlots];
  float rate;
  float decay;    // learning rate * weight decay
  float coupled;  // the rule's gradient is gradient + coupled * weight; 0 with row_wise_adagrad
  float clip;     // the new weight becomes the nearest value in [-clip, clip]; 0: it stays as it is
  // An average becomes keep[k] * average + take[k] * (the gradient or its square).
  float keep[2];
  float take[2];
  float epsilon;
  float root_scale;
  float l1, l2, beta;  // FTRL
  PastCaches past;
};

// The loops over elements, all built for one set of CPU instructions. Every table gives the same bits: each
// element is computed by the same IEEE operations (+ - * / sqrt, each rounded once, no fused multiply-add) in
// the same order. Only row_wise_adagrad sums across elements, in an order that it fixes. Stateless, hence
// thread-safe.
struct Kernels {
  const char* name;  // "plain", "avx2", "avx512"

  // One pass each. The result is whether all of the gradient was finite; if not, the outputs are invalid.
  // Each value of the gradient is read once, and the value that is checked is the one that is used, because
  // another process may write to the gradient's memory.
  bool (*sgd)(const StepArgs&);
  bool (*momentum)(const StepArgs&);
  bool (*nesterov)(const StepArgs&);
  bool (*adagrad)(const StepArgs&);
  bool (*rmsprop)(const StepArgs&);
  bool (*adam)(const StepArgs&);
  bool (*amsgrad)(const StepArgs&);
  bool (*lion)(const StepArgs&);
  bool (*ftrl)(const StepArgs&);
  // As adam, but weights_out gets what adam would subtract from the weights. Clips nothing.
  bool (*adam_update)(const StepArgs&);

  // The n elements are one row of a table, whose only slot has one element. Reads the gradient twice: nobody
  // else may write to it.
  bool (*row_wise_adagrad)(const StepArgs&);

  // The weighted sum of gradients: out = factor * in, sum += factor * in. `in` is a gradient as above: it is
  // read once, and the result says whether `in` was finite, not whether the output is.
  bool (*scale)(float* out, float factor, const void* in, size_t n);
  bool (*accumulate)(float* sum, float factor, const void* in, size_t n);
  // out = in: for buffers of a model, which are assigned, and for gradients that are kept. `in` and the
  // result as above.
  bool (*assign)(float* out, const void* in, size_t n);

  // For each of `runs` runs of kSquaresRun values from `in` on, the sum of their squares in float64: square s
  // + square (s + 8) for s < 8, and so on down to one.
  void (*sum_squares)(double* sums, const float* in, size_t runs);
};

extern const Kernels kPlainKernels;   // baseline x86-64 (SSE2)
extern const Kernels kAvx2Kernels;    // may run only if the CPU has AVX2
extern const Kernels kAvx512Kernels;  // may run only if the CPU has AVX-512 F, BW, DQ and VL

}  // namespace weir
