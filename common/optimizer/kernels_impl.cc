// The kernels. BUILD compiles this file once for each level of the CPU, whose instructions the compiler's
// options name. An optimizer is a rule that is written once, for a float and for a register. A pass
// applies the rule to registers of the level's width, and then to the remaining elements one by one.
// Includes only kernel_table.h (which says why) and the header of the intrinsics, which are always
// inlined.
#include <immintrin.h>

#include "common/optimizer/kernel_table.h"

namespace weir {
namespace {

static_assert(sizeof(unsigned int) == sizeof(float), "float32 and its bits");

inline unsigned int ToBits(float value) {
  unsigned int bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

// A register of floats, and the operations for which C++ has no operator.
#if defined(__AVX512F__)
#define WEIR_KERNELS kAvx512Kernels
#define WEIR_KERNELS_NAME "avx512"
typedef __m512 Vector;
// The mask covers all lanes; GCC 12 gives a warning for the unmasked form.
inline Vector Sqrt(Vector x) { return _mm512_maskz_sqrt_ps(0xffff, x); }
inline void StorePast(float* to, Vector x) { _mm512_stream_ps(to, x); }
#elif defined(__AVX2__)
#define WEIR_KERNELS kAvx2Kernels
#define WEIR_KERNELS_NAME "avx2"
typedef __m256 Vector;
inline Vector Sqrt(Vector x) { return _mm256_sqrt_ps(x); }
inline void StorePast(float* to, Vector x) { _mm256_stream_ps(to, x); }
#else
#define WEIR_KERNELS kPlainKernels
#define WEIR_KERNELS_NAME "plain"
typedef __m128 Vector;
inline Vector Sqrt(Vector x) { return _mm_sqrt_ps(x); }
inline void StorePast(float* to, Vector x) { _mm_stream_ps(to, x); }
#endif
inline float Sqrt(float x) { return __builtin_sqrtf(x); }
constexpr size_t kLanes = sizeof(Vector) / sizeof(float);
typedef unsigned int VectorBits __attribute__((vector_size(sizeof(Vector))));

// T is float or Vector. The address need not be aligned: the value may lie inside a received message.
template <typename T>
inline T Load(const void* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

// Reads a part of a gradient, which may lie in memory that another process writes; the value that is checked
// must be the value that is used. Passes read the gradient only through this function, which reads each value
// once: the compiler must assume that the assembly's output differs from the value in memory.
template <typename T>
inline T ReadOnce(const void* from) {
  T value = Load<T>(from);
  __asm__("" : "+v"(value));
  return value;
}

// All bits are zero if x is finite: x - x is then +0, and otherwise a NaN.
inline unsigned int NotFinite(float x) { return ToBits(x - x); }
inline VectorBits NotFinite(Vector x) { return (VectorBits)(x - x); }

// A pass that is not inlined would read its rule's factors from memory in every round.
#define WEIR_INLINE __attribute__((always_inline)) inline

// Handles the elements [i, end) one by one. Not 0: some value of the gradient was not finite.
template <size_t kSlots, typename Rule>
WEIR_INLINE unsigned int Singly(const StepArgs& a, size_t i, size_t end, const Rule& rule) {
  const char* g = static_cast<const char*>(a.gradient);
  unsigned int bad = 0;
  for (; i < end; ++i) {
    const float gradient = ReadOnce<float>(g + i * sizeof(float));
    bad |= NotFinite(gradient);
    float slots[kSlots + 1] = {};
    for (size_t k = 0; k < kSlots; ++k) slots[k] = a.slots_in[k][i];
    const float w = rule(gradient, a.weights_in[i], slots);
    for (size_t k = 0; k < kSlots; ++k) a.slots_out[k][i] = slots[k];
    a.weights_out[i] = w;
  }
  return bad;
}

template <bool kPast>
inline void Store(float* to, Vector x) {
  if (kPast) {
    StorePast(to, x);
  } else {
    __builtin_memcpy(to, &x, sizeof x);
  }
}

// One pass: `rule(gradient, weight, slots)` returns the new weight and updates the slots. Stores past the
// caches start at `begin`, where the outputs are aligned.
template <size_t kSlots, PastCaches kPast, typename Rule>
WEIR_INLINE bool Pass(const StepArgs& a, size_t begin, const Rule& rule) {
  unsigned int bad = Singly<kSlots>(a, 0, begin, rule);
  const char* g = static_cast<const char*>(a.gradient);
  VectorBits bad_lanes = {};
  size_t i = begin;
  for (; i + kLanes <= a.n; i += kLanes) {
    const Vector gradient = ReadOnce<Vector>(g + i * sizeof(float));
    bad_lanes |= NotFinite(gradient);
    Vector slots[kSlots + 1] = {};
    for (size_t k = 0; k < kSlots; ++k) slots[k] = Load<Vector>(a.slots_in[k] + i);
    const Vector w = rule(gradient, Load<Vector>(a.weights_in + i), slots);
    for (size_t k = 0; k < kSlots; ++k) Store<kPast != PastCaches::kNothing>(a.slots_out[k] + i, slots[k]);
    Store<kPast == PastCaches::kSlotsAndWeights>(a.weights_out + i, w);
  }
  // Without the fence, a thread that learns of the end of this pass might read memory before the stores reach
  // it.
  if (kPast != PastCaches::kNothing) _mm_sfence();
  for (size_t lane = 0; lane < kLanes; ++lane) bad |= bad_lanes[lane];
  bad |= Singly<kSlots>(a, i, a.n, rule);
  return bad == 0;
}

template <size_t kSlots, typename Rule>
WEIR_INLINE bool RunAsItIs(const StepArgs& a, const Rule& rule) {
  const bool weights = a.past == PastCaches::kSlotsAndWeights;
  if (a.past == PastCaches::kNothing || (kSlots == 0 && !weights)) {
    return Pass<kSlots, PastCaches::kNothing>(a, 0, rule);
  }
  const auto misaligned = [](const float* p) { return reinterpret_cast<unsigned long>(p) % sizeof(Vector); };
  const size_t off = misaligned(kSlots > 0 ? a.slots_out[0] : a.weights_out);
  bool together = !weights || misaligned(a.weights_out) == off;
  for (size_t k = 1; k < kSlots; ++k) together &= misaligned(a.slots_out[k]) == off;
  const size_t begin = off == 0 ? 0 : (sizeof(Vector) - off) / sizeof(float);
  if (!together || begin > a.n) return Pass<kSlots, PastCaches::kNothing>(a, 0, rule);
  return weights ? Pass<kSlots, PastCaches::kSlotsAndWeights>(a, begin, rule)
                 : Pass<kSlots, PastCaches::kSlots>(a, begin, rule);
}

// The nearest value in [-limit, limit]. A NaN stays a NaN.
template <typename T>
inline T Clip(T w, float limit) {
  const T zero = {}, high = zero + limit, low = zero - limit;
  const T below = w > high ? high : w;
  return below < low ? low : below;
}

// Passes that clip or couple are compiled apart, so that an update with neither costs nothing more. A pass
// that couples clips always, maybe to infinity, which changes no bit.
template <size_t kSlots, typename Rule>
WEIR_INLINE bool Run(const StepArgs& a, const Rule& rule) {
  if (a.clip == 0 && a.coupled == 0) return RunAsItIs<kSlots>(a, rule);
  const float clip = a.clip == 0 ? __builtin_inff() : a.clip;
  // Copies of the rule: with a reference to it, the pass above would read its factors from memory in every
  // round.
  if (a.coupled == 0) {
    return RunAsItIs<kSlots>(
        a, [rule, clip](auto g, auto w, auto* slots) { return Clip(rule(g, w, slots), clip); });
  }
  return RunAsItIs<kSlots>(a, [rule, clip, coupled = a.coupled](auto g, auto w, auto* slots) {
    return Clip(rule(g + coupled * w, w, slots), clip);
  });
}

// The rules, for a float and for a Vector. w is the weight before the step; `decay * w` is the decoupled
// weight decay.

// w - rate g
bool Sgd(const StepArgs& a) {
  return Run<0>(
      a, [rate = a.rate, decay = a.decay](auto g, auto w, auto*) { return w - (rate * g + decay * w); });
}

// v = keep v + g;  w - rate v
bool Momentum(const StepArgs& a) {
  return Run<1>(a, [rate = a.rate, decay = a.decay, keep = a.keep[0]](auto g, auto w, auto* v) {
    *v = keep * *v + g;
    return w - (rate * *v + decay * w);
  });
}

// v = keep v + g;  w - rate (g + keep v)
bool Nesterov(const StepArgs& a) {
  return Run<1>(a, [rate = a.rate, decay = a.decay, keep = a.keep[0]](auto g, auto w, auto* v) {
    *v = keep * *v + g;
    return w - (rate * (g + keep * *v) + decay * w);
  });
}

// G = G + g^2;  w - rate g / (sqrt(G) + epsilon)
bool Adagrad(const StepArgs& a) {
  return Run<1>(a, [rate = a.rate, decay = a.decay, epsilon = a.epsilon](auto g, auto w, auto* sum) {
    *sum = *sum + g * g;
    return w - (rate * g / (Sqrt(*sum) + epsilon) + decay * w);
  });
}

// s = keep s + take g^2;  w - rate g / (sqrt(s) + epsilon)
bool RmsProp(const StepArgs& a) {
  return Run<1>(a, [rate = a.rate, decay = a.decay, epsilon = a.epsilon, keep = a.keep[0], take = a.take[0]](
                       auto g, auto w, auto* s) {
    *s = keep * *s + take * (g * g);
    return w - (rate * g / (Sqrt(*s) + epsilon) + decay * w);
  });
}

// m = keep m + take g;  v = keep v + take g^2;  result(w, u) with u = rate m / (root_scale sqrt(v) + epsilon)
// + decay w, where rate and root_scale include the corrections of the bias of m and v. With a third slot
// (AMSGrad), u has the largest v so far, which that slot keeps.
template <size_t kSlots, typename Result>
WEIR_INLINE bool AdamWith(const StepArgs& a, const Result& result) {
  return Run<kSlots>(a, [result, rate = a.rate, decay = a.decay, epsilon = a.epsilon,
                         root_scale = a.root_scale, m_keep = a.keep[0], m_take = a.take[0],
                         v_keep = a.keep[1], v_take = a.take[1]](auto g, auto w, auto* slots) {
    slots[0] = m_keep * slots[0] + m_take * g;
    slots[1] = v_keep * slots[1] + v_take * (g * g);
    if (kSlots == 3) slots[2] = slots[2] > slots[1] ? slots[2] : slots[1];
    return result(w, rate * slots[0] / (root_scale * Sqrt(slots[kSlots - 1]) + epsilon) + decay * w);
  });
}

bool Adam(const StepArgs& a) {
  return AdamWith<2>(a, [](auto w, auto u) { return w - u; });
}

bool AdamUpdate(const StepArgs& a) {
  return AdamWith<2>(a, [](auto, auto u) { return u; });
}

bool AmsGrad(const StepArgs& a) {
  return AdamWith<3>(a, [](auto w, auto u) { return w - u; });
}

// c = keep0 m + take0 g;  m = keep1 m + take1 g;  w - rate sgn(c)
bool Lion(const StepArgs& a) {
  return Run<1>(a, [rate = a.rate, decay = a.decay, c_keep = a.keep[0], c_take = a.take[0],
                    m_keep = a.keep[1], m_take = a.take[1]](auto g, auto w, auto* m) {
    const auto c = c_keep * *m + c_take * g;
    *m = m_keep * *m + m_take * g;
    const decltype(w) zero = {};
    // 0 and NaN stay what they are.
    const auto step = c > 0 ? zero + rate : (c < 0 ? zero - rate : rate * c);
    return w - (step + decay * w);
  });
}

// n' = n + g^2;  z = z + g - (sqrt(n') - sqrt(n)) / rate w;  the new weight is 0 if |z| <= l1, and otherwise
// (sgn(z) l1 - z) / ((beta + sqrt(n')) / rate + l2). The slots are z and n.
bool Ftrl(const StepArgs& a) {
  return Run<2>(a, [rate = a.rate, l1 = a.l1, l2 = a.l2, beta = a.beta](auto g, auto w, auto* slots) {
    const auto root = Sqrt(slots[1]);
    slots[1] = slots[1] + g * g;
    const auto new_root = Sqrt(slots[1]);
    const auto z = slots[0] + (g - (new_root - root) / rate * w);
    slots[0] = z;
    const decltype(w) zero = {};
    const auto beyond = z > l1 ? l1 - z : (z < -l1 ? -l1 - z : zero);
    return beyond / ((beta + new_root) / rate + l2);
  });
}

// The sum of the squares of a gradient's n values, in the same order at every level. There are 16 sums, sum s
// over the values i with i mod 16 = s. Then come sum s + sum (s + 8) for s < 8, and so on down to one.
inline float SumOfSquares(const StepArgs& a, bool* finite) {
  constexpr size_t kSums = 16;
  const char* g = static_cast<const char*>(a.gradient);
  Vector vectors[kSums / kLanes] = {};
  VectorBits bad_lanes = {};
  size_t i = 0;
  for (; i + kSums <= a.n; i += kSums) {
    for (size_t v = 0; v < kSums / kLanes; ++v) {
      const Vector x = Load<Vector>(g + (i + v * kLanes) * sizeof(float));
      bad_lanes |= NotFinite(x);
      vectors[v] = vectors[v] + x * x;
    }
  }
  unsigned int bad = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) bad |= bad_lanes[lane];
  float sums[kSums];
  __builtin_memcpy(sums, vectors, sizeof sums);
  for (size_t s = 0; i < a.n; ++i, ++s) {
    const float x = Load<float>(g + i * sizeof(float));
    bad |= NotFinite(x);
    sums[s] = sums[s] + x * x;
  }
  for (size_t half = kSums / 2; half > 0; half /= 2) {
    for (size_t s = 0; s < half; ++s) sums[s] = sums[s] + sums[s + half];
  }
  *finite = bad == 0;
  return sums[0];
}

// h = h + (sum of g^2) / n;  w - rate / (sqrt(h) + epsilon) g
bool RowWiseAdagrad(const StepArgs& a) {
  bool finite;
  const float h = a.slots_in[0][0] + SumOfSquares(a, &finite) / static_cast<float>(a.n);
  a.slots_out[0][0] = h;
  Run<0>(a, [rate = a.rate / (Sqrt(h) + a.epsilon), decay = a.decay](auto g, auto w, auto*) {
    return w - (rate * g + decay * w);
  });
  return finite;
}

// For each element, `rule` computes the new value of `out` from a gradient and the old value.
template <typename Rule>
inline bool Over(float* out, const void* in, size_t n, const Rule& rule) {
  StepArgs a{};
  a.n = n;
  a.weights_in = a.weights_out = out;
  a.gradient = in;
  return Pass<0, PastCaches::kNothing>(a, 0, [&rule](auto g, auto w, auto*) { return rule(g, w); });
}

bool Scale(float* out, float factor, const void* in, size_t n) {
  return Over(out, in, n, [factor](auto g, auto) { return factor * g; });
}

bool Accumulate(float* sum, float factor, const void* in, size_t n) {
  return Over(sum, in, n, [factor](auto g, auto w) { return w + factor * g; });
}

bool Assign(float* out, const void* in, size_t n) {
  return Over(out, in, n, [](auto g, auto) { return g; });
}

void SumSquares(double* sums, const float* in, size_t runs) {
  constexpr size_t kDoubles = kLanes / 2, kVectors = kSquaresRun / kDoubles;
  typedef float Half __attribute__((vector_size(sizeof(Vector) / 2)));
  typedef double Doubles __attribute__((vector_size(sizeof(Vector))));
  for (size_t run = 0; run < runs; ++run, in += kSquaresRun) {
    Doubles squares[kVectors];
    for (size_t v = 0; v < kVectors; ++v) {
      const Doubles x = __builtin_convertvector(Load<Half>(in + v * kDoubles), Doubles);
      squares[v] = x * x;
    }
    for (size_t half = kVectors / 2; half > 0; half /= 2) {
      for (size_t v = 0; v < half; ++v) squares[v] = squares[v] + squares[v + half];
    }
    double lanes[kDoubles];
    __builtin_memcpy(lanes, &squares[0], sizeof lanes);
    for (size_t half = kDoubles / 2; half > 0; half /= 2) {
      for (size_t s = 0; s < half; ++s) lanes[s] = lanes[s] + lanes[s + half];
    }
    sums[run] = lanes[0];
  }
}

}  // namespace

constexpr Kernels WEIR_KERNELS = {
    WEIR_KERNELS_NAME,
    Sgd,
    Momentum,
    Nesterov,
    Adagrad,
    RmsProp,
    Adam,
    AmsGrad,
    Lion,
    Ftrl,
    AdamUpdate,
    RowWiseAdagrad,
    Scale,
    Accumulate,
    Assign,
    SumSquares,
};

}  // namespace weir
