#include "tests/worker/compute/queued_backend.h"

#include <cstring>
#include <deque>
#include <functional>
#include <utility>

namespace weir {
namespace {

// Added to the address of device memory: no such address is mapped.
constexpr uintptr_t kDeviceTag = uintptr_t{1} << 62;

template <typename T>
T* Real(T* pointer) {
  return pointer == nullptr ? nullptr
                            : reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(pointer) - kDeviceTag);
}

class QueuedBackend final : public ComputeBackend {
 public:
  ~QueuedBackend() override { RunAll(); }

  absl::string_view name() const override { return "queued"; }
  bool unified() const override { return false; }

  absl::StatusOr<void*> Allocate(Memory memory, size_t bytes) override {
    auto pointer = cpu_->Allocate(memory, bytes);
    if (!pointer.ok() || memory == Memory::kHost) return pointer;
    return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(*pointer) + kDeviceTag);
  }
  void Free(Memory memory, void* pointer) override {
    RunAll();
    cpu_->Free(memory, memory == Memory::kHost ? pointer : Real(pointer));
  }
  int64_t allocations() const override { return cpu_->allocations(); }
  void CopyToHost(void* to_host, const void* from, size_t bytes) override {
    downloads_.push_back({++queued_, [=] { cpu_->CopyToHost(to_host, Real(from), bytes); }});
  }
  void CopyToDevice(void* to, const void* from_host, size_t bytes, uint64_t after) override {
    if (after < queued_) {
      // As early as allowed: code that still uses the memory sees the change.
      RunUpTo(after);
      cpu_->CopyToDevice(Real(to), from_host, bytes);
    }
    // As late as allowed: the host's memory must not have changed.
    Queue([=] {
      RunDownloads(after);
      cpu_->CopyToDevice(Real(to), from_host, bytes);
    });
  }
  void CopyAhead(void* to, const void* from_host, size_t bytes, uint64_t after) override {
    if (after < queued_) {
      // As early as allowed: code that still uses the memory, or does not join the copy, sees the change.
      RunUpTo(after);
      std::memset(Real(to), 0xff, bytes);
    }
    aheads_.push_back({++queued_, [=] {
                         RunDownloads(after);
                         cpu_->CopyToDevice(Real(to), from_host, bytes);
                       }});
  }
  void Join(uint64_t mark) override {
    Queue([this, mark] { RunAheads(mark); });
  }
  uint64_t Record() override { return queued_; }
  absl::Status Wait(uint64_t mark) override {
    // Copies to the host come last: code that overwrites their sources too early is caught.
    if (mark <= done_) return absl::OkStatus();
    RunUpTo(queued_, mark);
    RunAheads(mark);
    done_ = mark;
    return absl::OkStatus();
  }
  bool Passed(uint64_t mark) override {
    if (mark <= done_) return true;
    asked_ = !asked_;
    return !asked_ && Wait(mark).ok();
  }

  // By making the calls again: their inputs must be the same.
  bool replays() const override { return true; }

  void Fill(int64_t n, float value, float* x) override {
    Queue([=] { cpu_->Fill(n, value, Real(x)); });
  }
  void Axpy(int64_t n, float alpha, const float* x, float* y) override {
    Queue([=] { cpu_->Axpy(n, alpha, Real(x), Real(y)); });
  }
  void RoundToBfloat16(int64_t n, const float* x, uint16_t* y) override {
    Queue([=] { cpu_->RoundToBfloat16(n, Real(x), Real(y)); });
  }
  void Gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
            const float* b, float beta, float* c) override {
    Queue([=] { cpu_->Gemm(transpose_a, transpose_b, m, n, k, alpha, Real(a), Real(b), beta, Real(c)); });
  }
  void AddBias(int64_t rows, int64_t columns, const float* bias, float* x) override {
    Queue([=] { cpu_->AddBias(rows, columns, Real(bias), Real(x)); });
  }
  void BiasGradient(int64_t rows, int64_t columns, const float* dy, float* dbias) override {
    Queue([=] { cpu_->BiasGradient(rows, columns, Real(dy), Real(dbias)); });
  }
  void Conv2dForward(const Window& window, int64_t filters, int64_t n, const float* x, const float* weight,
                     const float* bias, float* y) override {
    Queue([=] { cpu_->Conv2dForward(window, filters, n, Real(x), Real(weight), Real(bias), Real(y)); });
  }
  void Conv2dBackward(const Window& window, int64_t filters, int64_t n, const float* x, const float* weight,
                      const float* dy, float* dx, float* dweight, float* dbias) override {
    Queue([=] {
      cpu_->Conv2dBackward(window, filters, n, Real(x), Real(weight), Real(dy), Real(dx), Real(dweight),
                           Real(dbias));
    });
  }
  void MaxPoolForward(const Window& window, int64_t n, const float* x, float* y, int32_t* argmax) override {
    Queue([=] { cpu_->MaxPoolForward(window, n, Real(x), Real(y), Real(argmax)); });
  }
  void MaxPoolBackward(const Window& window, int64_t n, const float* dy, const int32_t* argmax,
                       float* dx) override {
    Queue([=] { cpu_->MaxPoolBackward(window, n, Real(dy), Real(argmax), Real(dx)); });
  }
  void ActivationForward(Activation kind, int64_t n, const float* x, float* y) override {
    Queue([=] { cpu_->ActivationForward(kind, n, Real(x), Real(y)); });
  }
  void ActivationBackward(Activation kind, int64_t n, const float* x, const float* y, const float* dy,
                          float* dx) override {
    Queue([=] { cpu_->ActivationBackward(kind, n, Real(x), Real(y), Real(dy), Real(dx)); });
  }
  void Dropout(const DropoutMask& mask, int64_t n, const float* x, float* y) override {
    Queue([=] { cpu_->Dropout(mask, n, Real(x), Real(y)); });
  }
  void SoftmaxCrossEntropy(int64_t n, int64_t classes, const float* logits, const int32_t* labels,
                           float gradient_scale, float* losses, float* dlogits) override {
    Queue([=] {
      cpu_->SoftmaxCrossEntropy(n, classes, Real(logits), Real(labels), gradient_scale, Real(losses),
                                Real(dlogits));
    });
  }
  void MeanSquaredError(int64_t n, int64_t outputs, const float* predictions, const float* targets,
                        float gradient_scale, float* losses, float* dpredictions) override {
    Queue([=] {
      cpu_->MeanSquaredError(n, outputs, Real(predictions), Real(targets), gradient_scale, Real(losses),
                             Real(dpredictions));
    });
  }
  void SigmoidCrossEntropy(int64_t n, const float* logits, const float* targets, float gradient_scale,
                           float* losses, float* dlogits) override {
    Queue([=] {
      cpu_->SigmoidCrossEntropy(n, Real(logits), Real(targets), gradient_scale, Real(losses), Real(dlogits));
    });
  }
  void Argmax(int64_t n, int64_t classes, const float* logits, int32_t* indexes) override {
    Queue([=] { cpu_->Argmax(n, classes, Real(logits), Real(indexes)); });
  }

 private:
  struct Operation {
    uint64_t number;  // among all queued operations, from 1
    std::function<void()> work;
  };

  void Queue(std::function<void()> work) { compute_.push_back({++queued_, std::move(work)}); }
  void RunUpTo(uint64_t computed, uint64_t downloaded) {
    while (!compute_.empty() && compute_.front().number <= computed) {
      const Operation operation = std::move(compute_.front());
      compute_.pop_front();
      operation.work();
    }
    RunDownloads(downloaded);
  }
  void RunUpTo(uint64_t number) { RunUpTo(number, number); }
  void RunDownloads(uint64_t up_to) {
    for (; !downloads_.empty() && downloads_.front().number <= up_to; downloads_.pop_front()) {
      downloads_.front().work();
    }
  }
  void RunAheads(uint64_t up_to) {
    while (!aheads_.empty() && aheads_.front().number <= up_to) {
      const Operation copy = std::move(aheads_.front());
      aheads_.pop_front();
      copy.work();
    }
  }
  void RunAll() { static_cast<void>(Wait(queued_)); }

  const std::unique_ptr<ComputeBackend> cpu_ = *MakeComputeBackend({"cpu"});
  // Every operation waits for the ones queued before it, except copies to the host and copies ahead, which
  // have queues of their own.
  std::deque<Operation> compute_, downloads_, aheads_;
  uint64_t queued_ = 0, done_ = 0;  // all up to `done_` has been waited for
  bool asked_ = false;              // whether something has passed, in vain
};

}  // namespace

std::unique_ptr<ComputeBackend> MakeQueuedBackend() { return std::make_unique<QueuedBackend>(); }

}  // namespace weir
