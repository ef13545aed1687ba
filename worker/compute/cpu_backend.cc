#include <cblas.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/codec/floats.h"
#include "worker/compute/compute_backend.h"

// Of OpenBLAS, which has no header for them: takes a buffer, and gives it back.
extern "C" void* blas_memory_alloc(int unused);
extern "C" void blas_memory_free(void* buffer);

namespace weir {
namespace {

constexpr size_t kAlignment = 64;

// tanh to a few units in the last place, without branches so that loops over it vectorise: a rational
// function as in Eigen (generic_fast_tanh_float), over the range beyond which float32 tanh is 1.
inline float FastTanh(float value) {
  const float x = std::min(std::max(value, -7.90531110763549805f), 7.90531110763549805f);
  const float x2 = x * x;
  float p = -2.76076847742355e-16f;
  p = p * x2 + 2.00018790482477e-13f;
  p = p * x2 + -8.60467152213735e-11f;
  p = p * x2 + 5.12229709037114e-08f;
  p = p * x2 + 1.48572235717979e-05f;
  p = p * x2 + 6.37261928875436e-04f;
  p = p * x2 + 4.89352455891786e-03f;
  float q = 1.19825839466702e-06f;
  q = q * x2 + 1.18534705686654e-04f;
  q = q * x2 + 2.26843463243900e-03f;
  q = q * x2 + 4.89352518554385e-03f;
  return x * p / q;
}

inline float GeluTanh(float x) { return FastTanh(kGeluScale * (x + kGeluCubic * x * x * x)); }

// y[i] = max(y[i], x[first + i * stride]), with the position where it was found.
inline void TakeLarger(int32_t n, int32_t stride, const float* __restrict x, int32_t first,
                       float* __restrict y, int32_t* __restrict argmax) {
  x += first;
  for (int32_t i = 0; i < n; ++i) {
    const float value = x[i * stride], before = y[i];
    const int32_t where = argmax[i];
    const bool larger = (value > before) | (value != value);  // NaN stays
    y[i] = larger ? value : before;
    argmax[i] = larger ? first + i * stride : where;
  }
}

// The output positions [first, end) of `outputs` that read inside the image, along one axis for one tap of
// the kernel.
struct Range {
  int64_t first, end;
};
Range Inside(const Window& w, int64_t tap, int64_t inputs, int64_t outputs) {
  // 0 <= output * stride + tap - padding < inputs
  const int64_t shift = w.padding - tap;
  const int64_t first = shift <= 0 ? 0 : (shift + w.stride - 1) / w.stride;
  const int64_t end = inputs + shift <= 0 ? 0 : (inputs + shift - 1) / w.stride + 1;
  return {std::min(first, outputs), std::min(end, outputs)};
}

// Calls act(position in the image, position in the column matrix, n) for each row of n > 0 outputs that reads
// the image. The outputs lie side by side; the values that they read lie `stride` apart.
template <typename Act>
void ForEachRow(const Window w, const Act& act) {
  const int64_t out_height = w.out_height(), out_width = w.out_width();
  int64_t column = 0;
  for (int64_t c = 0; c < w.channels; ++c) {
    for (int64_t ky = 0; ky < w.kernel; ++ky) {
      const Range rows = Inside(w, ky, w.height, out_height);
      for (int64_t kx = 0; kx < w.kernel; ++kx, column += out_height * out_width) {
        const Range columns = Inside(w, kx, w.width, out_width);
        const int64_t n = columns.end - columns.first;
        if (n <= 0) continue;
        const int64_t left = columns.first * w.stride + kx - w.padding;
        for (int64_t y = rows.first; y < rows.end; ++y) {
          act((c * w.height + y * w.stride + ky - w.padding) * w.width + left,
              column + y * out_width + columns.first, n);
        }
      }
    }
  }
}

// Rows of images are short: copies of a known size, which need no call, do better than one memcpy.
inline void CopyRow(int64_t n, const float* from, float* to) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) std::memcpy(to + i, from + i, 8 * sizeof(float));
  for (; i < n; ++i) to[i] = from[i];
}

inline void AddRow(int64_t n, const float* __restrict from, float* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] += from[i];
}

// One image [channels, height, width] as a matrix, so that convolution becomes a product: column
// [channels * kernel * kernel, out_height * out_width] holds what each tap of the kernel sees at each output
// position.
void Im2Col(const Window& w, const float* image, float* column) {
  if (w.padding > 0) {
    std::fill_n(column, w.channels * w.kernel * w.kernel * w.out_height() * w.out_width(), 0.0f);
  }
  if (w.stride == 1) {
    ForEachRow(w, [=](int64_t x, int64_t y, int64_t n) { CopyRow(n, image + x, column + y); });
  } else {
    const int64_t stride = w.stride;
    ForEachRow(w, [=](int64_t x, int64_t y, int64_t n) {
      for (int64_t i = 0; i < n; ++i) column[y + i] = image[x + i * stride];
    });
  }
}

// The transpose: each position of `image` becomes the sum of the values that Im2Col() takes from there.
void Col2Im(const Window& w, const float* column, float* image) {
  std::fill_n(image, w.channels * w.height * w.width, 0.0f);
  if (w.stride == 1) {
    ForEachRow(w, [=](int64_t x, int64_t y, int64_t n) { AddRow(n, column + y, image + x); });
  } else {
    const int64_t stride = w.stride;
    ForEachRow(w, [=](int64_t x, int64_t y, int64_t n) {
      for (int64_t i = 0; i < n; ++i) image[x + i * stride] += column[y + i];
    });
  }
}

// OpenBLAS maps a buffer for each thread that computes, keeps it for later, and tries on for ever where the
// system refuses it. So where address space is limited, the buffers of all `backends` that there are are
// mapped before they compute.
absl::Status ReserveBuffers(int backends) {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return absl::OkStatus();
  constexpr size_t kBuffer = 129 << 20;  // with what aligns it
  std::vector<void*> buffers(backends);
  absl::Status status;
  for (void*& buffer : buffers) {
    void* const trial = mmap(nullptr, kBuffer, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (trial == MAP_FAILED) {
      status = absl::ResourceExhaustedError(
          absl::StrCat("no memory for OpenBLAS, which needs ", kBuffer >> 20,
                       " MiB of address space for each thread that computes: RLIMIT_AS (ulimit -v) is ",
                       limit.rlim_cur >> 20, " MiB for this process; raise it"));
      break;
    }
    munmap(trial, kBuffer);
    buffer = blas_memory_alloc(0);
  }
  for (void* const buffer : buffers) {
    if (buffer != nullptr) blas_memory_free(buffer);
  }
  return status;
}

class CpuBackend final : public ComputeBackend {
 public:
  explicit CpuBackend(int threads) {
    openblas_set_num_threads(threads);
    ++count_;
  }
  ~CpuBackend() override { --count_; }
  // How many backends there are.
  static int count() { return count_; }

  absl::string_view name() const override { return "cpu"; }
  bool unified() const override { return true; }

  absl::StatusOr<void*> Allocate(Memory, size_t bytes) override {
    const size_t whole = std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    void* pointer = whole >= bytes ? std::aligned_alloc(kAlignment, whole) : nullptr;
    ++allocations_;
    if (pointer == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for a tensor of ", bytes,
                                                       " bytes; use a smaller batch or more micro-batches"));
    }
    return pointer;
  }
  void Free(Memory, void* pointer) override { std::free(pointer); }
  int64_t allocations() const override { return allocations_; }
  void CopyToDevice(void* to, const void* from_host, size_t bytes, uint64_t) override {
    std::memcpy(to, from_host, bytes);
  }
  void CopyToHost(void* to_host, const void* from, size_t bytes) override {
    std::memcpy(to_host, from, bytes);
  }
  void CopyAhead(void* to, const void* from_host, size_t bytes, uint64_t) override {
    std::memcpy(to, from_host, bytes);
  }
  void Join(uint64_t) override {}
  uint64_t Record() override { return 0; }
  absl::Status Wait(uint64_t) override { return absl::OkStatus(); }
  bool Passed(uint64_t) override { return true; }

  void Fill(int64_t n, float value, float* x) override { std::fill(x, x + n, value); }
  void Axpy(int64_t n, float alpha, const float* __restrict x, float* __restrict y) override {
    for (int64_t i = 0; i < n; ++i) y[i] += alpha * x[i];
  }

  void RoundToBfloat16(int64_t n, const float* x, uint16_t* y) override {
    ToBfloat16(x, y, static_cast<size_t>(n));
  }

  void Gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
            const float* b, float beta, float* c) override {
    cblas_sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans,
                transpose_b ? CblasTrans : CblasNoTrans, static_cast<blasint>(m), static_cast<blasint>(n),
                static_cast<blasint>(k), alpha, a, static_cast<blasint>(transpose_a ? m : k), b,
                static_cast<blasint>(transpose_b ? k : n), beta, c, static_cast<blasint>(n));
  }
  void AddBias(int64_t rows, int64_t columns, const float* __restrict bias, float* __restrict x) override {
    for (int64_t r = 0; r < rows; ++r, x += columns) {
      for (int64_t c = 0; c < columns; ++c) x[c] += bias[c];
    }
  }
  void BiasGradient(int64_t rows, int64_t columns, const float* __restrict dy,
                    float* __restrict dbias) override {
    for (int64_t r = 0; r < rows; ++r, dy += columns) {
      for (int64_t c = 0; c < columns; ++c) dbias[c] += dy[c];
    }
  }

  // One image at a time, so that its columns stay in the cache between being made and being multiplied.
  void Conv2dForward(const Window& w, int64_t filters, int64_t n, const float* x, const float* weight,
                     const float* bias, float* y) override {
    const int64_t patch = w.channels * w.kernel * w.kernel, positions = w.out_height() * w.out_width();
    float* column = Scratch(0, patch * positions);
    for (int64_t i = 0; i < n; ++i, x += w.channels * w.height * w.width, y += filters * positions) {
      Im2Col(w, x, column);
      for (int64_t f = 0; f < filters; ++f) std::fill(y + f * positions, y + (f + 1) * positions, bias[f]);
      Gemm(false, false, filters, positions, patch, 1, weight, column, 1, y);
    }
  }
  void Conv2dBackward(const Window& w, int64_t filters, int64_t n, const float* x, const float* weight,
                      const float* dy, float* dx, float* dweight, float* dbias) override {
    const int64_t patch = w.channels * w.kernel * w.kernel, positions = w.out_height() * w.out_width();
    float* column = Scratch(0, patch * positions);
    float* dcolumn = dx == nullptr ? nullptr : Scratch(1, patch * positions);
    for (int64_t i = 0; i < n; ++i, x += w.channels * w.height * w.width, dy += filters * positions) {
      for (int64_t f = 0; f < filters; ++f) dbias[f] += Sum(positions, dy + f * positions);
      Im2Col(w, x, column);
      Gemm(false, true, filters, patch, positions, 1, dy, column, 1, dweight);
      if (dx == nullptr) continue;
      Gemm(true, false, patch, positions, filters, 1, weight, dy, 0, dcolumn);
      Col2Im(w, dcolumn, dx);
      dx += w.channels * w.height * w.width;
    }
  }

  void MaxPoolForward(const Window& w, int64_t n, const float* x, float* y, int32_t* argmax) override {
    const int64_t out_height = w.out_height();
    const int32_t out_width = static_cast<int32_t>(w.out_width()), stride = static_cast<int32_t>(w.stride);
    for (int64_t plane = 0; plane < n * w.channels; ++plane, x += w.height * w.width) {
      for (int64_t oy = 0; oy < out_height; ++oy, y += out_width, argmax += out_width) {
        const int32_t corner = static_cast<int32_t>(oy * w.stride * w.width);
        for (int32_t ox = 0; ox < out_width; ++ox) {
          argmax[ox] = corner + ox * stride;
          y[ox] = x[argmax[ox]];
        }
        for (int64_t k = 1; k < w.kernel * w.kernel; ++k) {
          const int32_t first = corner + static_cast<int32_t>(k / w.kernel * w.width + k % w.kernel);
          // The usual stride as a constant, for speed.
          if (stride == 2) {
            TakeLarger(out_width, 2, x, first, y, argmax);
          } else {
            TakeLarger(out_width, stride, x, first, y, argmax);
          }
        }
      }
    }
  }
  void MaxPoolBackward(const Window& w, int64_t n, const float* dy, const int32_t* argmax,
                       float* dx) override {
    const int64_t outputs = w.out_height() * w.out_width(), inputs = w.height * w.width;
    std::fill(dx, dx + n * w.channels * inputs, 0.0f);
    for (int64_t plane = 0; plane < n * w.channels; ++plane, dx += inputs, dy += outputs, argmax += outputs) {
      for (int64_t i = 0; i < outputs; ++i) dx[argmax[i]] += dy[i];
    }
  }

  void ActivationForward(Activation kind, int64_t n, const float* __restrict x,
                         float* __restrict y) override {
    switch (kind) {
      case Activation::kRelu:
        // Written so that NaN passes on.
        for (int64_t i = 0; i < n; ++i) y[i] = x[i] < 0 ? 0 : x[i];
        break;
      case Activation::kGelu:
        for (int64_t i = 0; i < n; ++i) y[i] = 0.5f * x[i] * (1 + GeluTanh(x[i]));
        break;
      case Activation::kTanh:
        for (int64_t i = 0; i < n; ++i) y[i] = FastTanh(x[i]);
        break;
    }
  }
  void ActivationBackward(Activation kind, int64_t n, const float* x, const float* y, const float* dy,
                          float* dx) override {
    switch (kind) {
      case Activation::kRelu:
        for (int64_t i = 0; i < n; ++i) {
          const float slope = dy[i];  // read in any case, or the loop is not vectorised
          dx[i] = y[i] > 0 ? slope : 0;
        }
        break;
      case Activation::kGelu:
        for (int64_t i = 0; i < n; ++i) {
          const float t = GeluTanh(x[i]);
          const float inner = kGeluScale * (1 + 3 * kGeluCubic * x[i] * x[i]);
          dx[i] = dy[i] * 0.5f * (1 + t + x[i] * (1 - t * t) * inner);
        }
        break;
      case Activation::kTanh:
        for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] * (1 - y[i] * y[i]);
        break;
    }
  }
  void Dropout(const DropoutMask& mask, int64_t n, const float* x, float* y) override {
    if (mask.rate == 0) {
      if (y != x) std::copy(x, x + n, y);
      return;
    }
    const float scale = 1 / (1 - mask.rate);
    for (int64_t i = 0; i < n;) {
      const uint64_t element = static_cast<uint64_t>(mask.first_element + i);
      const auto words = Philox(mask.key, mask.counter, element / 4);
      for (uint64_t word = element % 4; word < 4 && i < n; ++word, ++i) {
        y[i] = UniformFloat(words[word]) < mask.rate ? 0 : x[i] * scale;
      }
    }
  }

  void SoftmaxCrossEntropy(int64_t n, int64_t classes, const float* logits, const int32_t* labels,
                           float gradient_scale, float* losses, float* dlogits) override {
    float* exponentials = Scratch(0, classes);
    for (int64_t i = 0; i < n; ++i, logits += classes) {
      const float largest = *std::max_element(logits, logits + classes);
      float sum = 0;
      for (int64_t c = 0; c < classes; ++c) sum += exponentials[c] = std::exp(logits[c] - largest);
      losses[i] = std::log(sum) - (logits[labels[i]] - largest);
      if (dlogits == nullptr) continue;
      const float scale = gradient_scale / sum;
      for (int64_t c = 0; c < classes; ++c) dlogits[c] = exponentials[c] * scale;
      dlogits[labels[i]] -= gradient_scale;
      dlogits += classes;
    }
  }
  void MeanSquaredError(int64_t n, int64_t outputs, const float* predictions, const float* targets,
                        float gradient_scale, float* losses, float* dpredictions) override {
    const float slope = gradient_scale * 2 / static_cast<float>(outputs);
    for (int64_t i = 0; i < n; ++i) {
      float sum = 0;
      for (int64_t j = 0; j < outputs; ++j) {
        const float difference = predictions[i * outputs + j] - targets[i * outputs + j];
        sum += difference * difference;
        if (dpredictions != nullptr) dpredictions[i * outputs + j] = slope * difference;
      }
      losses[i] = sum / static_cast<float>(outputs);
    }
  }
  void SigmoidCrossEntropy(int64_t n, const float* logits, const float* targets, float gradient_scale,
                           float* losses, float* dlogits) override {
    for (int64_t i = 0; i < n; ++i) {
      const float x = logits[i], small = std::exp(-std::abs(x));  // at most 1
      losses[i] = std::max(x, 0.0f) - x * targets[i] + std::log1p(small);
      if (dlogits == nullptr) continue;
      const float sigmoid = (x < 0 ? small : 1) / (1 + small);
      dlogits[i] = gradient_scale * (sigmoid - targets[i]);
    }
  }
  void Argmax(int64_t n, int64_t classes, const float* logits, int32_t* indexes) override {
    for (int64_t i = 0; i < n; ++i, logits += classes) {
      indexes[i] = static_cast<int32_t>(std::max_element(logits, logits + classes) - logits);
    }
  }

 private:
  // Sums in a fixed order of eight running sums, which vectorises.
  static float Sum(int64_t n, const float* x) {
    float sums[8] = {};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
      for (int lane = 0; lane < 8; ++lane) sums[lane] += x[i + lane];
    }
    for (int lane = 0; i < n; ++i, ++lane) sums[lane] += x[i];
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
  }

  // Two pieces of memory that live between calls and grow to what the largest call needs.
  float* Scratch(int which, int64_t n) {
    std::vector<float>& memory = scratch_[which];
    if (memory.size() < static_cast<size_t>(n)) {
      memory.resize(static_cast<size_t>(n));
      ++allocations_;
    }
    return memory.data();
  }
  std::vector<float> scratch_[2];
  static inline std::atomic<int> count_ = 0;
  int64_t allocations_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ComputeBackend>> MakeCpuBackend(int threads) {
  auto backend = std::make_unique<CpuBackend>(threads);
  WEIR_RETURN_IF_ERROR(ReserveBuffers(CpuBackend::count()));
  return backend;
}

}  // namespace weir
