#include <cuda_runtime.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/cuda/cuda_device.h"
#include "common/cuda/cuda_libraries.h"
#include "worker/compute/compute_backend.h"
#include "worker/compute/cuda_kernels.h"
#include "worker/compute/cuda_memory.h"
#include "worker/compute/cuda_streams.h"

namespace weir::cuda {
namespace {

// The most that cuBLAS wants on current devices.
constexpr size_t kBlasWorkspaceBytes = size_t{32} << 20;

class CudaBackend final : public ComputeBackend {
 public:
  CudaBackend(int device, Precision precision, size_t arena_chunk_bytes)
      : device_(device),
        precision_(precision),
        name_(absl::StrCat("cuda:", device)),
        convolution_bytes_(static_cast<int64_t>(arena_chunk_bytes)),
        arena_(arena_chunk_bytes) {}
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;
  ~CudaBackend() override {
    cudaSetDevice(device_);
    if (blas_handle_ != nullptr) blas_->destroy(blas_handle_);
  }

  // Sets up everything that a backend has. After a failure the backend is useless.
  absl::Status Start() {
    WEIR_RETURN_IF_ERROR(ToStatus(cudaSetDevice(device_), "cudaSetDevice"));
    WEIR_RETURN_IF_ERROR(streams_.Start());
    WEIR_ASSIGN_OR_RETURN(void* const workspace, arena_.Allocate(kBlasWorkspaceBytes));
    WEIR_ASSIGN_OR_RETURN(blas_, LoadBlasLibrary());
    WEIR_RETURN_IF_ERROR(BlasStatus(blas_->create(&blas_handle_), "cublasCreate"));
    WEIR_RETURN_IF_ERROR(BlasStatus(blas_->set_stream(blas_handle_, streams_.compute()), "cublasSetStream"));
    // Set after the stream, because setting the stream puts the library's own workspace back. The workspace
    // is fixed, so that the same product gives the same bits every time and may be captured in a graph.
    WEIR_RETURN_IF_ERROR(
        BlasStatus(blas_->set_workspace(blas_handle_, workspace, kBlasWorkspaceBytes), "cublasSetWorkspace"));
    return BlasStatus(blas_->set_math_mode(blas_handle_, CUBLAS_DEFAULT_MATH), "cublasSetMathMode");
  }

  absl::string_view name() const override { return name_; }
  bool unified() const override { return false; }

  // ---- memory and order ----

  absl::StatusOr<void*> Allocate(Memory memory, size_t bytes) override {
    if (!ReadyOutsideCapture("Allocate")) return state();
    if (memory == Memory::kDevice) return arena_.Allocate(bytes);
    void* pointer = nullptr;
    const cudaError_t error = cudaHostAlloc(&pointer, std::max<size_t>(bytes, 1), cudaHostAllocDefault);
    ++host_allocations_;
    if (error == cudaSuccess) return pointer;
    cudaGetLastError();  // reported here; later calls start afresh
    return absl::ResourceExhaustedError(absl::StrCat("no page-locked host memory for ", bytes, " bytes (",
                                                     cudaGetErrorString(error),
                                                     "); use a smaller batch or more micro-batches"));
  }

  void Free(Memory memory, void* pointer) override {
    cudaSetDevice(device_);
    Note(streams_.WaitForAll());
    if (memory == Memory::kHost) {
      cudaFreeHost(pointer);
    } else if (pointer != nullptr) {
      operands_.Forget(pointer, arena_.Bytes(pointer), [&](void* rounded) { arena_.Free(rounded); });
      arena_.Free(pointer);
    }
  }

  int64_t allocations() const override { return arena_.allocations() + host_allocations_; }

  void CopyToHost(void* to_host, const void* from, size_t bytes) override {
    if (ReadyOutsideCapture("CopyToHost")) Note(streams_.CopyToHost(to_host, from, bytes));
  }
  void CopyToDevice(void* to, const void* from_host, size_t bytes, uint64_t after) override {
    if (!ReadyOutsideCapture("CopyToDevice")) return;
    operands_.Wrote(to, bytes);
    Note(streams_.CopyToDevice(to, from_host, bytes, after));
  }
  void CopyAhead(void* to, const void* from_host, size_t bytes, uint64_t after) override {
    if (!ReadyOutsideCapture("CopyAhead")) return;
    operands_.Wrote(to, bytes);
    Note(streams_.CopyAhead(to, from_host, bytes, after));
  }
  void Join(uint64_t mark) override {
    if (ReadyOutsideCapture("Join")) Note(streams_.Join(mark));
  }
  uint64_t Record() override {
    uint64_t mark = 0;
    if (ReadyOutsideCapture("Record")) Note(streams_.Record(&mark));
    return mark;
  }
  absl::Status Wait(uint64_t mark) override {
    if (ReadyOutsideCapture("Wait")) Note(streams_.Wait(mark));
    // Host memory is free again when this returns, failure or not.
    if (!status_.ok()) static_cast<void>(streams_.WaitForAll());
    return status_;
  }
  // After a failure, too, which Wait reports.
  bool Passed(uint64_t mark) override { return !ReadyOutsideCapture("Passed") || streams_.Passed(mark); }

  absl::StatusOr<std::unique_ptr<Captured>> Capture(std::function<void()> calls) override {
    if (!ReadyOutsideCapture("Capture")) return status_;
    WEIR_RETURN_IF_ERROR(
        ToStatus(cudaStreamBeginCapture(streams_.compute(), cudaStreamCaptureModeThreadLocal), "Capture"));
    capturing_ = true;
    operands_.WroteAnything();  // a replay finds other values
    capture_status_ = absl::OkStatus();
    calls();
    operands_.WroteAnything();  // nothing has run
    capturing_ = false;
    auto graph = std::make_unique<Graph>();
    const cudaError_t error = cudaStreamEndCapture(streams_.compute(), &graph->graph);
    if (error != cudaSuccess) cudaGetLastError();
    WEIR_RETURN_IF_ERROR(capture_status_);
    WEIR_RETURN_IF_ERROR(ToStatus(error, "Capture"));
    WEIR_RETURN_IF_ERROR(
        ToStatus(cudaGraphInstantiate(&graph->executable, graph->graph, 0), "instantiating a graph"));
    return graph;
  }

  void Replay(Captured* captured) override {
    operands_.WroteAnything();
    if (!Ready("Replay")) return;
    Note(ToStatus(cudaGraphLaunch(static_cast<Graph*>(captured)->executable, streams_.compute()), "Replay"));
  }

  // With bfloat16 a graph must round its operands anew, while calls find them rounded by earlier calls.
  bool replays() const override { return precision_ != Precision::kBfloat16; }

  // ---- vectors ----

  void Fill(int64_t n, float value, float* x) override {
    Run("Fill", {Range(n, x)}, cuda::Fill, n, value, x);
  }
  void Axpy(int64_t n, float alpha, const float* x, float* y) override {
    Run("Axpy", {Range(n, y)}, cuda::Axpy, n, alpha, x, y);
  }
  void RoundToBfloat16(int64_t n, const float* x, uint16_t* y) override {
    Run("RoundToBfloat16", {Range(n, y)}, cuda::RoundToBfloat16, n, x, y);
  }

  // ---- dense layers ----

  void Gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
            const float* b, float beta, float* c) override {
    if (precision_ == Precision::kBfloat16) {
      const uint16_t* const left = Operand<uint16_t>(m * k, a);
      const uint16_t* const right = Operand<uint16_t>(k * n, b);
      Product(transpose_a, transpose_b, m, n, k, alpha, left, right, beta, c);
    } else {
      Product(transpose_a, transpose_b, m, n, k, alpha, a, b, beta, c);
    }
  }
  void AddBias(int64_t rows, int64_t columns, const float* bias, float* x) override {
    Run("AddBias", {Range(rows * columns, x)}, cuda::AddBias, rows, columns, bias, x);
  }
  void BiasGradient(int64_t rows, int64_t columns, const float* dy, float* dbias) override {
    ChannelGradient(rows, columns, 1, dy, dbias);
  }

  // ---- images ----

  void Conv2dForward(const Window& window, int64_t filters, int64_t n, const float* x, const float* weight,
                     const float* bias, float* y) override {
    if (precision_ == Precision::kBfloat16) {
      ConvolutionForward<uint16_t>(window, filters, n, x, weight, bias, y);
    } else {
      ConvolutionForward<float>(window, filters, n, x, weight, bias, y);
    }
  }
  void Conv2dBackward(const Window& window, int64_t filters, int64_t n, const float* x, const float* weight,
                      const float* dy, float* dx, float* dweight, float* dbias) override {
    ChannelGradient(n, filters, window.out_height() * window.out_width(), dy, dbias);
    if (precision_ == Precision::kBfloat16) {
      ConvolutionBackward<uint16_t>(window, filters, n, x, weight, dy, dx, dweight);
    } else {
      ConvolutionBackward<float>(window, filters, n, x, weight, dy, dx, dweight);
    }
  }
  void MaxPoolForward(const Window& w, int64_t n, const float* x, float* y, int32_t* argmax) override {
    const int64_t outputs = n * w.channels * w.out_height() * w.out_width();
    Run("MaxPoolForward", {Range(outputs, y), Range(outputs, argmax)}, cuda::MaxPoolForward, w, n, x, y,
        argmax);
  }
  void MaxPoolBackward(const Window& w, int64_t n, const float* dy, const int32_t* argmax,
                       float* dx) override {
    Run("MaxPoolBackward", {Range(n * w.channels * w.height * w.width, dx)}, cuda::MaxPoolBackward, w, n, dy,
        argmax, dx);
  }

  // ---- element-wise layers and losses ----

  void ActivationForward(Activation kind, int64_t n, const float* x, float* y) override {
    Run("ActivationForward", {Range(n, y)}, cuda::ActivationForward, kind, n, x, y);
  }
  void ActivationBackward(Activation kind, int64_t n, const float* x, const float* y, const float* dy,
                          float* dx) override {
    Run("ActivationBackward", {Range(n, dx)}, cuda::ActivationBackward, kind, n, x, y, dy, dx);
  }
  void Dropout(const DropoutMask& mask, int64_t n, const float* x, float* y) override {
    Run("Dropout", {Range(n, y)}, cuda::Dropout, mask, n, x, y);
  }
  void SoftmaxCrossEntropy(int64_t n, int64_t classes, const float* logits, const int32_t* labels,
                           float gradient_scale, float* losses, float* dlogits) override {
    Run("SoftmaxCrossEntropy", {Range(n, losses), Range(n * classes, dlogits)}, cuda::SoftmaxCrossEntropy, n,
        classes, logits, labels, gradient_scale, losses, dlogits);
  }
  void MeanSquaredError(int64_t n, int64_t outputs, const float* predictions, const float* targets,
                        float gradient_scale, float* losses, float* dpredictions) override {
    Run("MeanSquaredError", {Range(n, losses), Range(n * outputs, dpredictions)}, cuda::MeanSquaredError, n,
        outputs, predictions, targets, gradient_scale, losses, dpredictions);
  }
  void SigmoidCrossEntropy(int64_t n, const float* logits, const float* targets, float gradient_scale,
                           float* losses, float* dlogits) override {
    Run("SigmoidCrossEntropy", {Range(n, losses), Range(n, dlogits)}, cuda::SigmoidCrossEntropy, n, logits,
        targets, gradient_scale, losses, dlogits);
  }
  void Argmax(int64_t n, int64_t classes, const float* logits, int32_t* indexes) override {
    Run("Argmax", {Range(n, indexes)}, cuda::Argmax, n, classes, logits, indexes);
  }

 private:
  struct Graph final : Captured {
    ~Graph() override {
      if (executable != nullptr) cudaGraphExecDestroy(executable);
      if (graph != nullptr) cudaGraphDestroy(graph);
    }
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
  };

  // n elements of device memory that a call writes; none if x is null.
  struct Range {
    template <typename T>
    Range(int64_t n, const T* x) : begin(x), bytes(x == nullptr ? 0 : static_cast<size_t>(n) * sizeof(T)) {}
    const void* begin;
    size_t bytes;
  };

  // The first failure stays. A failure while calls are captured fails the capture alone.
  absl::Status& state() { return capturing_ ? capture_status_ : status_; }
  void Note(const absl::Status& status) { state().Update(status); }
  absl::Status BlasStatus(cublasStatus_t status, const char* what) const {
    if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
    const auto message = absl::StrCat(what, ": ", blas_->status_string(status));
    if (status == CUBLAS_STATUS_ALLOC_FAILED) return absl::ResourceExhaustedError(message);
    return absl::InternalError(message);
  }
  // Makes the device this thread's. False: an earlier call has failed, so nothing makes sense any more.
  bool Ready(const char* what) {
    if (state().ok()) Note(ToStatus(cudaSetDevice(device_), what));
    return state().ok();
  }
  bool ReadyOutsideCapture(const char* what) {
    if (capturing_) Note(absl::InternalError(absl::StrCat(what, " cannot be captured")));
    return Ready(what);
  }
  // Launches kernels (cuda_kernels.h) that write these ranges.
  template <typename... Parameters, typename... Arguments>
  void Run(const char* what, std::initializer_list<Range> writes,
           cudaError_t (*launch)(cudaStream_t, Parameters...), const Arguments&... arguments) {
    if (!Ready(what)) return;
    for (const Range& range : writes) operands_.Wrote(range.begin, range.bytes);
    Note(ToStatus(launch(streams_.compute(), arguments...), what));
  }

  // Memory that stays where it is, because queued work and captured graphs use it. Null after a failure.
  template <typename T>
  T* TakeForGood(int64_t n) {
    if (!Ready("scratch memory")) return nullptr;
    if (capturing_) {
      Note(absl::InternalError("calls with these sizes must be made once before they are captured"));
      return nullptr;
    }
    const auto memory = arena_.Allocate(static_cast<size_t>(n) * sizeof(T));
    Note(memory.status());
    return memory.ok() ? static_cast<T*>(*memory) : nullptr;
  }

  // The uses of scratch memory.
  enum Use { kColumn, kPlanes, kPartials, kUses };
  struct Scratch {
    float* memory = nullptr;
    int64_t elements = 0;
  };
  // Memory that the caller owns until the next call for the same use. Null after a failure.
  float* Take(Use use, int64_t n) {
    Scratch& scratch = scratch_[use];
    if (scratch.elements < n) {
      const int64_t grown = std::max(n, 2 * scratch.elements);
      float* const memory = TakeForGood<float>(grown);
      if (memory == nullptr) return nullptr;
      scratch = {memory, grown};
    }
    return scratch.memory;
  }

  // x as an operand of products: itself, or rounded to bfloat16. Null after a failure.
  template <typename T>
  const T* Operand(int64_t n, const float* x) {
    if constexpr (std::is_same_v<T, float>) {
      return x;
    } else {
      RoundedOperands::Entry* const entry = operands_.Get(x);
      if (entry->elements >= n) return entry->memory;
      if (entry->capacity < n) {
        T* const memory = TakeForGood<T>(n);
        if (memory == nullptr) return nullptr;
        *entry = {memory, n, 0};
      }
      RoundToBfloat16(n, x, entry->memory);
      entry->elements = n;
      return entry->memory;
    }
  }

  // Row-major, by cuBLAS. a and b have the type that the precision asks for.
  void Product(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
               const void* a, const void* b, float beta, float* c) {
    if (m == 0 || n == 0 || !Ready("Gemm")) return;
    operands_.Wrote(c, static_cast<size_t>(m * n) * sizeof(float));
    const cudaDataType_t operands = precision_ == Precision::kBfloat16 ? CUDA_R_16BF : CUDA_R_32F;
    const cublasComputeType_t compute =
        precision_ == Precision::kTf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    // cuBLAS is column-major and sees our matrices as their transposes: c^T = op(b)^T op(a)^T.
    Note(BlasStatus(blas_->gemm_ex(blas_handle_, transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                                   transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &alpha, b, operands,
                                   transpose_b ? k : n, a, operands, transpose_a ? m : k, &beta, c,
                                   CUDA_R_32F, n, compute, CUBLAS_GEMM_DEFAULT),
                    "cublasGemmEx"));
  }

  void ChannelGradient(int64_t n, int64_t channels, int64_t positions, const float* dy, float* dbias) {
    float* const partials = Take(kPartials, BiasGradientPartials(n, channels, positions));
    Run("BiasGradient", {Range(channels, dbias)}, cuda::BiasGradient, n, channels, positions, dy, partials,
        dbias);
  }

  // A convolution as products over as many images at a time as the scratch memory holds. This number, and so
  // the order of sums, depends on the shapes alone.
  struct Convolution {
    int64_t patch, positions;
    int64_t images;  // at a time
  };
  Convolution Plan(const Window& w, int64_t filters, int64_t n) const {
    const int64_t patch = w.channels * w.kernel * w.kernel, positions = w.out_height() * w.out_width();
    const int64_t fit = convolution_bytes_ / ((patch + filters) * positions * int64_t{sizeof(float)});
    const int64_t most = (int64_t{1} << 30) / (w.channels * w.height * w.width);  // indexes are of 32 bits
    return {patch, positions, std::max<int64_t>(1, std::min({n, fit, most}))};
  }

  template <typename T>
  void ConvolutionForward(const Window& w, int64_t filters, int64_t n, const float* x, const float* weight,
                          const float* bias, float* y) {
    const auto [patch, positions, images] = Plan(w, filters, n);
    const int64_t inputs = w.channels * w.height * w.width, outputs = filters * positions;
    const T* const left = Operand<T>(filters * patch, weight);
    T* const column = reinterpret_cast<T*>(Take(kColumn, patch * images * positions));
    float* const planes = Take(kPlanes, images * outputs);
    for (int64_t first = 0; first < n; first += images) {
      const int64_t some = std::min(images, n - first);
      float* const out = y + first * outputs;
      Run("Conv2dForward", {}, Im2Col<T>, w, some, x + first * inputs, column);
      Product(false, false, filters, some * positions, patch, 1, left, column, 0, planes);
      Run("Conv2dForward", {Range(some * outputs, out)}, ToImages, some, filters, positions, planes, bias,
          out);
    }
  }

  template <typename T>
  void ConvolutionBackward(const Window& w, int64_t filters, int64_t n, const float* x, const float* weight,
                           const float* dy, float* dx, float* dweight) {
    const auto [patch, positions, images] = Plan(w, filters, n);
    const int64_t inputs = w.channels * w.height * w.width, outputs = filters * positions;
    const T* const left = dx == nullptr ? nullptr : Operand<T>(filters * patch, weight);
    // The gradient's column takes the place of the column.
    float* const dcolumn = Take(kColumn, patch * images * positions);
    T* const column = reinterpret_cast<T*>(dcolumn);
    T* const planes = reinterpret_cast<T*>(Take(kPlanes, images * outputs));
    for (int64_t first = 0; first < n; first += images) {
      const int64_t some = std::min(images, n - first), columns = some * positions;
      Run("Conv2dBackward", {}, Im2Col<T>, w, some, x + first * inputs, column);
      Run("Conv2dBackward", {}, SideBySide<T>, some, filters, positions, dy + first * outputs, planes);
      Product(false, true, filters, patch, columns, 1, planes, column, 1, dweight);
      if (dx == nullptr) continue;
      float* const out = dx + first * inputs;
      Product(true, false, patch, columns, filters, 1, left, planes, 0, dcolumn);
      Run("Conv2dBackward", {Range(some * inputs, out)}, Col2Im, w, some, dcolumn, out);
    }
  }

  const int device_;
  const Precision precision_;
  const std::string name_;
  const int64_t convolution_bytes_;  // of a convolution's scratch memory, if one image needs no more

  absl::Status status_;  // the first failure
  bool capturing_ = false;
  absl::Status capture_status_;

  // Work on the streams uses the arena's memory, so the arena is destroyed last.
  Arena arena_;
  Streams streams_;
  const BlasLibrary* blas_ = nullptr;
  cublasHandle_t blas_handle_ = nullptr;
  Scratch scratch_[kUses];
  RoundedOperands operands_;
  int64_t host_allocations_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ComputeBackend>> MakeBackend(int device, Precision precision,
                                                            size_t arena_chunk_bytes) {
  const auto unusable = [&](const absl::Status& status) {
    return absl::Status(
        status.code(), absl::StrCat("compute device 'cuda:", device, "' cannot be used: ", status.message()));
  };
  const auto found = Probe();
  if (!found.ok()) return unusable(found.status());
  const int devices = static_cast<int>(found->devices.size());
  if (device < 0 || device >= devices) {
    return absl::InvalidArgumentError(
        absl::StrCat("compute device 'cuda:", device, "' is not there; this host has 'cuda:0'",
                     devices > 1 ? absl::StrCat(" to 'cuda:", devices - 1, "'") : " alone"));
  }
  const absl::Status& usable = found->devices[static_cast<size_t>(device)].usable;
  if (!usable.ok()) return unusable(usable);
  auto backend = std::make_unique<CudaBackend>(device, precision, arena_chunk_bytes);
  const absl::Status status = backend->Start();
  if (!status.ok()) return unusable(status);
  return backend;
}

}  // namespace weir::cuda
