#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weir {

// Square windows over [channels, height, width] images; the geometry of convolution and pooling.
struct Window {
  int64_t channels = 0, height = 0, width = 0;  // of the input
  int64_t kernel = 0, stride = 1, padding = 0;  // padding: zeros on each of the four sides

  int64_t out_height() const { return (height + 2 * padding - kernel) / stride + 1; }
  int64_t out_width() const { return (width + 2 * padding - kernel) / stride + 1; }
};

enum class Activation {
  kRelu,
  // 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): the tanh form of Hendrycks and Gimpel 2016.
  kGelu,
  kTanh,
};

// Which elements a dropout drops: element e where UniformFloat(Philox(key, counter, e / 4)[e % 4]) < rate.
// The first element of the tensor at hand has the number first_element, so that a tensor may be cut in any
// way.
struct DropoutMask {
  float rate = 0;  // in [0, 1)
  uint64_t key = 0;
  uint64_t counter = 0;
  int64_t first_element = 0;
};

// The tensor operations behind a model, on one device.
//
// Tensors are dense row-major float32 in device memory, described by pointer and sizes; images are [n,
// channels, height, width]. Pointers called `host` are host memory, all others device memory; where unified()
// holds the two are the same. Inputs and outputs of one call do not overlap unless the call says so. Outputs
// are overwritten, whatever they held, except where "accumulates" is written.
//
// Operations are queued and run in the order of the calls; a call may return before its work is done. Host
// memory handed to a copy must stay as it is until Wait(Record()) has returned. A device's failure is sticky
// and comes back from Wait.
//
// The same calls give the same bits on the same kind of device with the same number of threads. One backend
// serves one thread at a time.
class ComputeBackend {
 public:
  // Backends that this build knows, for messages: "cpu".
  virtual absl::string_view name() const = 0;
  // The device's memory is host memory, so that no copies are needed.
  virtual bool unified() const = 0;

  virtual ~ComputeBackend() = default;

  // ---- memory and order ----

  enum class Memory {
    kDevice,
    kHost,  // host memory that the device copies to and from at full speed
  };
  // Aligned to 64 bytes, contents unspecified. ResourceExhausted names the size that was not to be had.
  virtual absl::StatusOr<void*> Allocate(Memory memory, size_t bytes) = 0;
  // Waits for the work that was queued before.
  virtual void Free(Memory memory, void* pointer) = 0;
  virtual void CopyToDevice(void* to, const void* from_host, size_t bytes) = 0;
  virtual void CopyToHost(void* to_host, const void* from, size_t bytes) = 0;
  // A mark behind everything queued so far; Wait returns once all before the mark is done.
  virtual uint64_t Record() = 0;
  virtual absl::Status Wait(uint64_t mark) = 0;

  // ---- vectors of n elements ----

  // x = value
  virtual void Fill(int64_t n, float value, float* x) = 0;
  // x *= alpha
  virtual void Scale(int64_t n, float alpha, float* x) = 0;
  // y += alpha * x
  virtual void Axpy(int64_t n, float alpha, const float* x, float* y) = 0;

  // ---- dense layers ----

  // c = alpha * op(a) * op(b) + beta * c with op(a) [m, k], op(b) [k, n], c [m, n]; a transposed a is stored
  // as [k, m], a transposed b as [n, k]. With beta 0 the old c is not read.
  virtual void Gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                    const float* a, const float* b, float beta, float* c) = 0;
  // x[r, c] += bias[c]
  virtual void AddBias(int64_t rows, int64_t columns, const float* bias, float* x) = 0;
  // Accumulates: dbias[c] += sum over r of dy[r, c].
  virtual void BiasGradient(int64_t rows, int64_t columns, const float* dy, float* dbias) = 0;

  // ---- images ----

  // y [n, filters, out_height, out_width] = the cross-correlation of x [n, channels, height, width] with
  // weight [filters, channels, kernel, kernel], plus bias [filters].
  virtual void Conv2dForward(const Window& window, int64_t filters, int64_t n, const float* x,
                             const float* weight, const float* bias, float* y) = 0;
  // Accumulates into dweight and dbias; overwrites dx, which may be null where nobody needs it.
  virtual void Conv2dBackward(const Window& window, int64_t filters, int64_t n, const float* x,
                              const float* weight, const float* dy, float* dx, float* dweight,
                              float* dbias) = 0;
  // y [n, channels, out_height, out_width]; argmax (of y's shape) is the position in the channel's height x
  // width plane, the first in row-major order among equals. NaN counts as larger than every number. padding
  // is 0.
  virtual void MaxPoolForward(const Window& window, int64_t n, const float* x, float* y, int32_t* argmax) = 0;
  virtual void MaxPoolBackward(const Window& window, int64_t n, const float* dy, const int32_t* argmax,
                               float* dx) = 0;

  // ---- element-wise layers of n elements ----

  virtual void ActivationForward(Activation kind, int64_t n, const float* x, float* y) = 0;
  // dx from the forward call's x and y and the gradient dy. dx may be dy.
  virtual void ActivationBackward(Activation kind, int64_t n, const float* x, const float* y, const float* dy,
                                  float* dx) = 0;
  // y = x / (1 - rate) where the mask keeps, 0 where it drops. The gradient is the same call on dy. y may be
  // x.
  virtual void Dropout(const DropoutMask& mask, int64_t n, const float* x, float* y) = 0;

  // ---- losses of n examples ----

  // losses[i] = -log softmax(logits[i, :])[labels[i]], computed without overflow; dlogits = gradient_scale *
  // (softmax - onehot), unless it is null. labels are in [0, classes).
  virtual void SoftmaxCrossEntropy(int64_t n, int64_t classes, const float* logits, const int32_t* labels,
                                   float gradient_scale, float* losses, float* dlogits) = 0;
  // losses[i] = mean over j of (predictions[i, j] - targets[i, j])^2; dpredictions = gradient_scale * its
  // gradient, unless null.
  virtual void MeanSquaredError(int64_t n, int64_t outputs, const float* predictions, const float* targets,
                                float gradient_scale, float* losses, float* dpredictions) = 0;
  // indexes[i] = the first position of the largest of logits[i, :].
  virtual void Argmax(int64_t n, int64_t classes, const float* logits, int32_t* indexes) = 0;
};

// n elements of T in a backend's memory. The backend must outlive it. Movable.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  static absl::StatusOr<Buffer> Make(ComputeBackend* backend, ComputeBackend::Memory memory, int64_t n) {
    auto pointer = backend->Allocate(memory, static_cast<size_t>(n) * sizeof(T));
    if (!pointer.ok()) return pointer.status();
    Buffer buffer;
    buffer.data_ = std::unique_ptr<T, Deleter>(static_cast<T*>(*pointer), Deleter{backend, memory});
    return buffer;
  }
  T* get() const { return data_.get(); }

 private:
  struct Deleter {
    ComputeBackend* backend = nullptr;
    ComputeBackend::Memory memory = ComputeBackend::Memory::kDevice;
    void operator()(T* pointer) const { backend->Free(memory, pointer); }
  };
  std::unique_ptr<T, Deleter> data_;
};

// device: "cpu". threads: of the matrix products; on the CPU the number holds for the whole process, since it
// is OpenBLAS's. InvalidArgument: a device that this build lacks, or threads < 1.
absl::StatusOr<std::unique_ptr<ComputeBackend>> MakeComputeBackend(absl::string_view device, int threads);

}  // namespace weir
