#pragma once

// Plain types only, and no standard library beyond <cstddef>: this header is compiled with three sets of
// target flags, and an inline function of a shared header, compiled for a CPU that is not there, could be the
// copy that the linker keeps.
#include <cstddef>

namespace weir {

// Which outputs are written past the caches. For a shard much larger than they are, whose new values are
// apart from the old ones: a cache would first read what is then overwritten, and keep what nobody reads
// soon.
enum class PastCaches { kNothing, kSlots, kSlotsAndWeights };

// One optimizer step over a run of n elements. What `rate`, `decay` and the other factors stand for in each
// optimizer is said beside the kernels (kernels_impl.inc). An output may be the very array of its input (in
// place); no other overlap.
struct StepArgs {
  size_t n;
  const float* weights_in;
  float* weights_out;
  const void* gradient;  // n float32 in the machine's byte order, at any address: it may lie inside a
                         // received message
  const float* slots_in[2];
  float* slots_out[2];
  float rate;
  float decay;  // learning rate * weight decay
  // slot[k] becomes keep[k] * slot[k] + take[k] * (the gradient or its square).
  float keep[2];
  float take[2];
  float epsilon;
  float root_scale;
  PastCaches past;
};

// The loops over elements, all built for one set of CPU instructions. Every table gives the same bits: each
// element is made by the same IEEE operations (+ - * / sqrt, each rounded once, no fused multiply-add) in the
// same order, and nothing is summed across elements. Stateless, hence thread-safe.
struct Kernels {
  const char* name;  // "plain", "avx2", "avx512"

  // One pass each. They answer whether all of the gradient was finite; if not, the outputs are of no use.
  // Each value of the gradient is read once, and that one reading is checked and used: the gradient may lie
  // in memory that another process writes.
  bool (*sgd)(const StepArgs&);
  bool (*momentum)(const StepArgs&);
  bool (*nesterov)(const StepArgs&);
  bool (*adagrad)(const StepArgs&);
  bool (*rmsprop)(const StepArgs&);
  bool (*adam)(const StepArgs&);

  // The weighted sum of gradients: out = factor * in, sum += factor * in. For `in` all that is said of a
  // gradient above holds, and the answer is about it, not about the result.
  bool (*scale)(float* out, float factor, const void* in, size_t n);
  bool (*accumulate)(float* sum, float factor, const void* in, size_t n);
  // out = in: for buffers of a model, which are assigned, and for gradients that are kept. Likewise.
  bool (*assign)(float* out, const void* in, size_t n);
  // Index of the first NaN or infinity; n if all are finite. May read a value twice.
  size_t (*first_non_finite)(const void* in, size_t n);
};

extern const Kernels kPlainKernels;   // x86-64 as it always was (SSE2)
extern const Kernels kAvx2Kernels;    // may run only where the CPU has AVX2
extern const Kernels kAvx512Kernels;  // may run only where the CPU has AVX-512 F, BW, DQ and VL

}  // namespace weir
