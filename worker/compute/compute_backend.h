#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/compute/operations.h"

namespace weir {

// The type of the operands of matrix products, those of convolutions included. Tensors, sums and everything
// else are float32 in any case.
enum class Precision {
  kFloat32,
  kTf32,      // operands rounded to 10 bits of fraction
  kBfloat16,  // to 7 bits, nearest even
};

// The tensor operations behind a model, on one device.
//
// Tensors are dense row-major float32 in device memory, described by pointer and sizes; images are [n,
// channels, height, width]. Pointers called `host` are host memory, all others device memory; if unified()
// the two are the same. Inputs and outputs of one call do not overlap unless the call says so. Outputs are
// overwritten, whatever they held, except where "accumulates" is written.
//
// Operations are queued and run in the order of the calls; a call may return before its work is done. Copies
// run beside them, each direction in its own order:
//   - CopyToHost reads what the calls before it have written, but no later call waits for it: a caller that
//     writes `from` again first waits for a mark behind the copy.
//   - All later calls see a CopyToDevice. It begins behind a mark of the caller's choice; without a mark it
//     waits for everything before it.
//   - CopyAhead is the same, but no later call waits for it until Join: a caller that uses `to` joins first.
// Host memory handed to a copy must stay as it is until Wait of a mark behind it has returned. A device's
// failure is sticky and comes back from Wait.
//
// On the same kind of device, with the same options, the same calls give the same bits. One backend serves
// one thread at a time.
class ComputeBackend {
 public:
  // For messages: "cpu", "cuda:0".
  virtual absl::string_view name() const = 0;
  // The device's memory is host memory, so that no copies are needed.
  virtual bool unified() const = 0;

  virtual ~ComputeBackend() = default;

  // ---- memory and order ----

  enum class Memory {
    kDevice,
    kHost,  // host memory that the device copies to and from at full speed
  };
  // Aligned to 64 bytes, contents unspecified. ResourceExhausted: there is not enough memory; names the size.
  virtual absl::StatusOr<void*> Allocate(Memory memory, size_t bytes) = 0;
  // Waits for the work that was queued before.
  virtual void Free(Memory memory, void* pointer) = 0;
  // How often memory was asked of the system or the device so far. The number stands still from the second
  // pass over the same shapes on; the first may grow scratch memory.
  virtual int64_t allocations() const = 0;

  virtual void CopyToHost(void* to_host, const void* from, size_t bytes) = 0;
  // Begins once everything before the mark `after` is done: no call behind that mark uses `to`. 0 is before
  // everything.
  virtual void CopyToDevice(void* to, const void* from_host, size_t bytes, uint64_t after) = 0;
  void CopyToDevice(void* to, const void* from_host, size_t bytes) {
    CopyToDevice(to, from_host, bytes, Record());
  }
  virtual void CopyAhead(void* to, const void* from_host, size_t bytes, uint64_t after) = 0;
  // Later calls come after the copies to the device that were made before the mark.
  virtual void Join(uint64_t mark) = 0;
  // A mark behind everything queued so far, copies included. Wait returns once everything before the mark is
  // done.
  virtual uint64_t Record() = 0;
  virtual absl::Status Wait(uint64_t mark) = 0;
  // Returns whether Wait would return at once. Becomes true when asked again and again.
  virtual bool Passed(uint64_t mark) = 0;

  // Calls that can be made again as one, which some devices do faster than the single calls.
  class Captured {
   public:
    virtual ~Captured() = default;
  };
  // Keeps the operations that `calls` makes on this backend, instead of running them. `calls` makes no copies
  // and marks, takes and frees no memory, and has been called once before with the same sizes. The backend
  // decides when `calls` is called, how often, and whether Replay calls it again: so it must do nothing else,
  // and what it refers to must outlive the result, as must the backend. Arguments are kept as they are,
  // dropout masks included.
  virtual absl::StatusOr<std::unique_ptr<Captured>> Capture(std::function<void()> calls);
  // Queues the captured operations.
  virtual void Replay(Captured* captured);
  // Returns whether a replay takes less time than the calls.
  virtual bool replays() const { return false; }

  // ---- vectors of n elements ----

  // x = value
  virtual void Fill(int64_t n, float value, float* x) = 0;
  // y += alpha * x
  virtual void Axpy(int64_t n, float alpha, const float* x, float* y) = 0;

  // y = x rounded to bfloat16, the bits of ToBfloat16 in common/codec/floats.h.
  virtual void RoundToBfloat16(int64_t n, const float* x, uint16_t* y) = 0;

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
  // Accumulates into dweight and dbias; overwrites dx, which may be null if it is not needed.
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
  // losses[i] = -log sigmoid(logits[i]) for the target 1, -log(1 - sigmoid(logits[i])) for 0, computed
  // without overflow; dlogits = gradient_scale * (sigmoid - target), unless it is null.
  virtual void SigmoidCrossEntropy(int64_t n, const float* logits, const float* targets, float gradient_scale,
                                   float* losses, float* dlogits) = 0;
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

struct ComputeOptions {
  std::string device = "cpu";  // "cpu" or "cuda:N"
  // Threads for matrix products on the CPU. The number holds for the whole process, because it is OpenBLAS's.
  int threads = 1;
  Precision precision = Precision::kFloat32;  // the CPU has no other
};

// The backend of options.device. InvalidArgument: an option that is not known or does not fit the device.
// FailedPrecondition: this host or build cannot use the device; the message says why. ResourceExhausted: the
// memory that the backend needs is not there.
absl::StatusOr<std::unique_ptr<ComputeBackend>> MakeComputeBackend(const ComputeOptions& options);

// Matrix products by OpenBLAS with `threads` threads (a setting of the whole process), the rest by loops on
// the calling thread. Every call is done when it returns. ResourceExhausted: OpenBLAS would not find the
// memory that it needs.
absl::StatusOr<std::unique_ptr<ComputeBackend>> MakeCpuBackend(int threads);

namespace cuda {

// Device memory is taken in chunks of this size, or larger if one tensor needs more.
constexpr size_t kArenaChunkBytes = size_t{256} << 20;

// The backend of CUDA device `device`: cuBLAS for matrix products, kernels of its own (cuda_*.cu) for the
// rest, on one stream for compute and one for the copies in each direction. FailedPrecondition: the device
// cannot be used. InvalidArgument: there is no such device. ResourceExhausted: the device has no memory left.
absl::StatusOr<std::unique_ptr<ComputeBackend>> MakeBackend(int device, Precision precision,
                                                            size_t arena_chunk_bytes = kArenaChunkBytes);

}  // namespace cuda

// "float32", "tf32", "bf16", as in compute.precision
absl::string_view PrecisionName(Precision precision);

}  // namespace weir
