#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "worker/compute/compute_backend.h"

// Shared by the parts of the conformance suite.
namespace weir::conformance {

inline constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
inline constexpr int64_t kSizes[] = {1, 7, 31, 33};
inline constexpr size_t kGuard = 16;

// A vector in device memory with a guard behind it.
template <typename T>
class Tensor {
 public:
  Tensor(ComputeBackend* backend, const std::vector<T>& values) : backend_(backend), n_(values.size()) {
    std::vector<T> host = values;
    host.resize(n_ + kGuard, GuardValue());
    auto buffer =
        Buffer<T>::Make(backend, ComputeBackend::Memory::kDevice, static_cast<int64_t>(host.size()));
    REQUIRE(buffer.ok());
    buffer_ = std::move(*buffer);
    REQUIRE(reinterpret_cast<uintptr_t>(buffer_.get()) % 64 == 0);
    backend->CopyToDevice(buffer_.get(), host.data(), host.size() * sizeof(T));
    REQUIRE(backend->Wait(backend->Record()).ok());
  }
  // An output that has not been written yet.
  Tensor(ComputeBackend* backend, int64_t n)
      : Tensor(backend,
               std::vector<T>(static_cast<size_t>(n),
                              std::is_same_v<T, float> ? static_cast<T>(kPoison) : static_cast<T>(-1))) {}

  T* get() const { return buffer_.get(); }
  std::vector<T> Read() const {
    std::vector<T> host(n_ + kGuard);
    backend_->CopyToHost(host.data(), buffer_.get(), host.size() * sizeof(T));
    REQUIRE(backend_->Wait(backend_->Record()).ok());
    const bool guard_intact = std::all_of(host.begin() + static_cast<int64_t>(n_), host.end(),
                                          [](T value) { return value == GuardValue(); });
    REQUIRE(guard_intact);
    host.resize(n_);
    return host;
  }

 private:
  static T GuardValue() { return static_cast<T>(12345); }
  ComputeBackend* backend_;
  size_t n_;
  Buffer<T> buffer_;
};

using Floats = Tensor<float>;
using Doubles = std::vector<double>;

inline std::vector<float> Random(int64_t n, uint64_t stream, float reach = 1) {
  RandomStream random(99, stream);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = (2 * UniformFloat(random.Next()) - 1) * reach;
  return values;
}

inline void CheckClose(const std::vector<float>& got, const Doubles& want, double tolerance = 2e-6) {
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const bool close = std::abs(got[i] - want[i]) <= tolerance * (1 + std::abs(want[i]));  // false for NaN
    if (!close) {
      CAPTURE(i, got[i], want[i], got.size());
      CHECK(close);
      return;
    }
  }
  CHECK(true);
}

struct Geometry {
  int64_t channels, height, width, kernel, stride, padding, filters, n;
  Window window() const { return {channels, height, width, kernel, stride, padding}; }
};

// The tolerance of matrix products: |got - want| <= unit * magnitude[i], where magnitude is the sum of the
// absolute values of all products and of the addend.
inline void CheckProducts(const std::vector<float>& got, const Doubles& want, const Doubles& magnitude,
                          double unit) {
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const bool close = std::abs(got[i] - want[i]) <= unit * magnitude[i];  // false for NaN
    if (!close) {
      CAPTURE(i, got[i], want[i], magnitude[i], unit);
      CHECK(close);
      return;
    }
  }
  CHECK(true);
}

// The unit of a sum of k products. In float32 each rounding on the way to the sum is off by at most 2^-24 of
// the magnitude, in any order. Rounding the operands adds an error: to TF32's 10 bits of fraction 2^-10 each
// (2^-11 where the hardware rounds to nearest, but it may cut off). To bfloat16's 7 bits it adds 2^-8 each,
// as Weir rounds those to nearest itself. Tensor cores may cut off in sums, so sums get twice as much there.
inline double ProductUnit(Precision precision, int64_t k) {
  const double sums = static_cast<double>(k + 4) / (1 << 24);
  switch (precision) {
    case Precision::kFloat32:
      return sums;
    case Precision::kTf32:
      return 2.0 / (1 << 10) + 2 * sums;
    case Precision::kBfloat16:
      return 2.01 / (1 << 8) + 2 * sums;
  }
  return 0;
}

void CheckMemoryAndOrder(ComputeBackend* b);
void CheckCopies(ComputeBackend* b);
void CheckCapture(ComputeBackend* b);
void CheckVectors(ComputeBackend* b);
void CheckBfloat16(ComputeBackend* b);
void CheckGemm(ComputeBackend* b, Precision precision);
void CheckConv2d(ComputeBackend* b, Precision precision);
void CheckBias(ComputeBackend* b);
void CheckMaxPool(ComputeBackend* b);
void CheckActivations(ComputeBackend* b);
void CheckDropout(ComputeBackend* b);
void CheckLosses(ComputeBackend* b);
void CheckSameBits(const std::function<std::unique_ptr<ComputeBackend>()>& make);

}  // namespace weir::conformance
