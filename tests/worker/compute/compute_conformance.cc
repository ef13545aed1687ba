#include "tests/worker/compute/compute_conformance.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/random.h"

namespace weir {
namespace {

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kSizes[] = {1, 7, 31, 33};
constexpr size_t kGuard = 16;

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
  // An output that nobody has written yet.
  Tensor(ComputeBackend* backend, int64_t n)
      : Tensor(backend,
               std::vector<T>(static_cast<size_t>(n), std::is_same_v<T, float> ? T(kPoison) : T(-1))) {}

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
  static T GuardValue() { return T(123456); }
  ComputeBackend* const backend_;
  const size_t n_;
  Buffer<T> buffer_;
};

using Floats = Tensor<float>;
using Doubles = std::vector<double>;

std::vector<float> Random(int64_t n, uint64_t stream, float reach = 1) {
  RandomStream random(99, stream);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = (2 * UniformFloat(random.Next()) - 1) * reach;
  return values;
}

void CheckClose(const std::vector<float>& got, const Doubles& want, double tolerance = 2e-6) {
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

void CheckVectors(ComputeBackend* b) {
  for (const int64_t n : {1, 7, 31, 33, 1000}) {
    CAPTURE(n);
    const std::vector<float> x = Random(n, 1), y = Random(n, 2);
    Floats filled(b, n), scaled(b, x), sum(b, y), addend(b, x);
    b->Fill(n, 2.5f, filled.get());
    CheckClose(filled.Read(), Doubles(static_cast<size_t>(n), 2.5));
    b->Scale(n, -3, scaled.get());
    b->Axpy(n, 0.5f, addend.get(), sum.get());
    Doubles want_scaled, want_sum;
    for (size_t i = 0; i < x.size(); ++i) {
      want_scaled.push_back(-3.0 * x[i]);
      want_sum.push_back(y[i] + 0.5 * x[i]);
    }
    CheckClose(scaled.Read(), want_scaled);
    CheckClose(sum.Read(), want_sum);
  }
}

void CheckGemm(ComputeBackend* b) {
  for (const int64_t m : kSizes) {
    for (const int64_t n : kSizes) {
      for (const int64_t k : kSizes) {
        const std::vector<float> a = Random(m * k, 1), c = Random(k * n, 2), old = Random(m * n, 3);
        Floats device_a(b, a), device_c(b, c);
        for (const int variant : {0, 1, 2, 3}) {
          const bool ta = variant & 1, tb = variant & 2;
          for (const float beta : {0.0f, 1.0f, -0.5f}) {
            CAPTURE(m, n, k, ta, tb, beta);
            Floats out = beta == 0 ? Floats(b, m * n) : Floats(b, old);
            b->Gemm(ta, tb, m, n, k, 1.5f, device_a.get(), device_c.get(), beta, out.get());
            Doubles want;
            for (int64_t i = 0; i < m; ++i) {
              for (int64_t j = 0; j < n; ++j) {
                double sum = 0;
                for (int64_t l = 0; l < k; ++l) {
                  sum += double{a[static_cast<size_t>(ta ? l * m + i : i * k + l)]} *
                         c[static_cast<size_t>(tb ? j * k + l : l * n + j)];
                }
                want.push_back(1.5 * sum + (beta == 0 ? 0 : beta * old[static_cast<size_t>(i * n + j)]));
              }
            }
            CheckClose(out.Read(), want, 1e-5);
          }
        }
      }
    }
  }
}

void CheckBias(ComputeBackend* b) {
  for (const int64_t rows : kSizes) {
    for (const int64_t columns : kSizes) {
      CAPTURE(rows, columns);
      const std::vector<float> x = Random(rows * columns, 1), bias = Random(columns, 2);
      Floats added(b, x), device_bias(b, bias), dy(b, x), dbias(b, bias);
      b->AddBias(rows, columns, device_bias.get(), added.get());
      b->BiasGradient(rows, columns, dy.get(), dbias.get());
      Doubles want_added, want_dbias(bias.begin(), bias.end());
      for (size_t i = 0; i < x.size(); ++i) {
        const size_t column = i % static_cast<size_t>(columns);
        want_added.push_back(double{x[i]} + bias[column]);
        want_dbias[column] += x[i];
      }
      CheckClose(added.Read(), want_added);
      CheckClose(dbias.Read(), want_dbias, 1e-5);
    }
  }
}

struct Geometry {
  int64_t channels, height, width, kernel, stride, padding, filters, n;
  Window window() const { return {channels, height, width, kernel, stride, padding}; }
};

void CheckConv2d(ComputeBackend* b) {
  const Geometry cases[] = {{1, 1, 1, 1, 1, 0, 1, 1},   {3, 7, 5, 3, 1, 1, 4, 2}, {2, 9, 31, 5, 1, 2, 7, 3},
                            {1, 28, 28, 5, 1, 0, 8, 2}, {2, 8, 7, 3, 2, 0, 5, 2}, {3, 7, 7, 3, 2, 1, 1, 3},
                            {2, 4, 33, 4, 3, 2, 3, 1},  {1, 2, 2, 5, 1, 2, 2, 2}, {1, 3, 1, 3, 2, 3, 2, 1},
                            {31, 3, 3, 1, 1, 0, 33, 7}, {2, 1, 1, 1, 1, 3, 2, 2}};
  for (const Geometry& g : cases) {
    CAPTURE(g.channels, g.height, g.width, g.kernel, g.stride, g.padding, g.filters, g.n);
    const Window w = g.window();
    const int64_t oh = w.out_height(), ow = w.out_width();
    const std::vector<float> x = Random(g.n * g.channels * g.height * g.width, 1);
    const std::vector<float> weight = Random(g.filters * g.channels * g.kernel * g.kernel, 2),
                             bias = Random(g.filters, 3);
    const std::vector<float> dy = Random(g.n * g.filters * oh * ow, 4);
    Doubles y, dx(x.size()), dweight(weight.begin(), weight.end()), dbias(bias.begin(), bias.end());
    for (int64_t i = 0; i < g.n; ++i) {
      for (int64_t f = 0; f < g.filters; ++f) {
        for (int64_t position = 0; position < oh * ow; ++position) {
          double sum = bias[static_cast<size_t>(f)];
          const double slope = dy[y.size()];
          dbias[static_cast<size_t>(f)] += slope;
          for (int64_t c = 0; c < g.channels; ++c) {
            for (int64_t ky = 0; ky < g.kernel; ++ky) {
              for (int64_t kx = 0; kx < g.kernel; ++kx) {
                const int64_t iy = position / ow * g.stride + ky - g.padding,
                              ix = position % ow * g.stride + kx - g.padding;
                if (iy < 0 || iy >= g.height || ix < 0 || ix >= g.width) continue;
                const size_t at = static_cast<size_t>(((i * g.channels + c) * g.height + iy) * g.width + ix);
                const size_t tap =
                    static_cast<size_t>(((f * g.channels + c) * g.kernel + ky) * g.kernel + kx);
                sum += double{x[at]} * weight[tap];
                dx[at] += slope * weight[tap];
                dweight[tap] += slope * x[at];
              }
            }
          }
          y.push_back(sum);
        }
      }
    }
    Floats device_x(b, x), device_weight(b, weight), device_bias(b, bias), device_dy(b, dy);
    Floats device_y(b, static_cast<int64_t>(y.size())), device_dx(b, static_cast<int64_t>(x.size()));
    b->Conv2dForward(w, g.filters, g.n, device_x.get(), device_weight.get(), device_bias.get(),
                     device_y.get());
    CheckClose(device_y.Read(), y, 1e-5);
    for (const bool need_dx : {true, false}) {
      Floats device_dweight(b, weight), device_dbias(b, bias);
      b->Conv2dBackward(w, g.filters, g.n, device_x.get(), device_weight.get(), device_dy.get(),
                        need_dx ? device_dx.get() : nullptr, device_dweight.get(), device_dbias.get());
      CheckClose(device_dx.Read(), dx, 1e-5);
      CheckClose(device_dweight.Read(), dweight, 1e-5);
      CheckClose(device_dbias.Read(), dbias, 1e-5);
    }
  }
}

void CheckMaxPool(ComputeBackend* b) {
  const Geometry cases[] = {{1, 1, 1, 1, 1, 0, 0, 1},   {3, 8, 8, 2, 2, 0, 0, 2}, {2, 7, 9, 2, 2, 0, 0, 3},
                            {1, 31, 33, 3, 2, 0, 0, 2}, {2, 5, 6, 3, 1, 0, 0, 1}, {1, 7, 7, 2, 5, 0, 0, 2}};
  for (const Geometry& g : cases) {
    CAPTURE(g.channels, g.height, g.width, g.kernel, g.stride, g.n);
    const Window w = g.window();
    std::vector<float> x = Random(g.n * g.channels * g.height * g.width, 5);
    for (float& value : x) value = std::round(value * 4);  // many equals
    const int64_t outputs = g.n * g.channels * w.out_height() * w.out_width();
    const std::vector<float> dy = Random(outputs, 6);
    Doubles y, dx(x.size());
    std::vector<int32_t> argmax;
    for (int64_t plane = 0; plane < g.n * g.channels; ++plane) {
      for (int64_t oy = 0; oy < w.out_height(); ++oy) {
        for (int64_t ox = 0; ox < w.out_width(); ++ox) {
          double best = -1e9;
          int64_t where = -1;
          for (int64_t iy = oy * g.stride; iy < oy * g.stride + g.kernel; ++iy) {
            for (int64_t ix = ox * g.stride; ix < ox * g.stride + g.kernel; ++ix) {
              const double value = x[static_cast<size_t>((plane * g.height + iy) * g.width + ix)];
              if (value > best) best = value, where = iy * g.width + ix;
            }
          }
          dx[static_cast<size_t>(plane * g.height * g.width + where)] += dy[y.size()];
          y.push_back(best);
          argmax.push_back(static_cast<int32_t>(where));
        }
      }
    }
    Floats device_x(b, x), device_y(b, outputs), device_dy(b, dy),
        device_dx(b, static_cast<int64_t>(x.size()));
    Tensor<int32_t> device_argmax(b, outputs);
    b->MaxPoolForward(w, g.n, device_x.get(), device_y.get(), device_argmax.get());
    b->MaxPoolBackward(w, g.n, device_dy.get(), device_argmax.get(), device_dx.get());
    CheckClose(device_y.Read(), y);
    CHECK(device_argmax.Read() == argmax);
    CheckClose(device_dx.Read(), dx);
  }
  Floats x(b, std::vector<float>{1, kPoison, 5, 2}), y(b, 1);
  Tensor<int32_t> argmax(b, 1);
  b->MaxPoolForward({1, 2, 2, 2, 2, 0}, 1, x.get(), y.get(), argmax.get());
  CHECK(std::isnan(y.Read()[0]));
  CHECK(argmax.Read()[0] == 1);
}

double ActivationValue(Activation kind, double x) {
  switch (kind) {
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kGelu:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kTanh:
      return std::tanh(x);
  }
  return 0;
}

double ActivationSlope(Activation kind, double x) {
  if (kind == Activation::kRelu) return x > 0 ? 1 : 0;
  constexpr double kStep = 1e-5;
  return (ActivationValue(kind, x + kStep) - ActivationValue(kind, x - kStep)) / (2 * kStep);
}

void CheckActivations(ComputeBackend* b) {
  for (const Activation kind : {Activation::kRelu, Activation::kGelu, Activation::kTanh}) {
    for (const int64_t n : {1, 7, 31, 33, 5000}) {
      CAPTURE(static_cast<int>(kind), n);
      std::vector<float> x = Random(n, 7, n > 100 ? 12.0f : 2.0f);
      if (n == 7) x = {-30, -9, -1e-20f, 1e-4f, 1e-20f, 9, 30};
      const std::vector<float> dy = Random(n, 8);
      Doubles want_y, want_dx;
      for (size_t i = 0; i < x.size(); ++i) {
        want_y.push_back(ActivationValue(kind, x[i]));
        want_dx.push_back(dy[i] * ActivationSlope(kind, x[i]));
      }
      Floats device_x(b, x), y(b, n), device_dy(b, dy), dx(b, n);
      b->ActivationForward(kind, n, device_x.get(), y.get());
      CheckClose(y.Read(), want_y);
      b->ActivationBackward(kind, n, device_x.get(), y.get(), device_dy.get(), dx.get());
      CheckClose(dx.Read(), want_dx, 5e-6);
      b->ActivationBackward(kind, n, device_x.get(), y.get(), device_dy.get(), device_dy.get());
      CHECK(device_dy.Read() == dx.Read());
    }
  }
}

void CheckDropout(ComputeBackend* b) {
  const DropoutMask mask{0.3f, 0x123456789abcdef, 42, 0};
  constexpr int64_t kElements = 10001;
  const std::vector<float> x = Random(kElements, 9);
  Floats device_x(b, x), whole(b, kElements);
  b->Dropout(mask, kElements, device_x.get(), whole.get());
  const std::vector<float> y = whole.Read();
  Doubles want;
  int64_t dropped = 0;
  for (size_t e = 0; e < x.size(); ++e) {
    const bool drop = UniformFloat(Philox(mask.key, mask.counter, e / 4)[e % 4]) < mask.rate;
    dropped += drop;
    want.push_back(drop ? 0 : x[e] / 0.7);
  }
  CheckClose(y, want);
  CHECK(std::abs(static_cast<double>(dropped) / kElements - 0.3) < 0.02);

  // Cut anywhere, in place: the same.
  for (const int64_t cut : {1, 6, 4096}) {
    CAPTURE(cut);
    DropoutMask rest = mask;
    rest.first_element = cut;
    Floats pieces(b, x);
    b->Dropout(mask, cut, pieces.get(), pieces.get());
    b->Dropout(rest, kElements - cut, pieces.get() + cut, pieces.get() + cut);
    CHECK(pieces.Read() == y);
  }
  for (DropoutMask other : {DropoutMask{0.3f, 1, 42, 0}, DropoutMask{0.3f, mask.key, 43, 0}}) {
    Floats out(b, kElements);
    b->Dropout(other, kElements, device_x.get(), out.get());
    CHECK(out.Read() != y);
  }
  Floats kept(b, kElements);
  b->Dropout({0, 1, 2, 3}, kElements, device_x.get(), kept.get());
  CHECK(kept.Read() == x);
}

void CheckLosses(ComputeBackend* b) {
  for (const int64_t n : kSizes) {
    for (const int64_t classes : {1, 2, 10, 33}) {
      for (const float reach : {1.0f, 200.0f}) {
        CAPTURE(n, classes, reach);
        const std::vector<float> logits = Random(n * classes, 10, reach),
                                 targets = Random(n * classes, 11, reach);
        std::vector<int32_t> labels, largest;
        Doubles losses, dlogits, errors, dpredictions;
        for (int64_t i = 0; i < n; ++i) {
          const auto row = logits.begin() + i * classes;
          labels.push_back(static_cast<int32_t>((i * 7) % classes));
          largest.push_back(static_cast<int32_t>(std::max_element(row, row + classes) - row));
          double sum = 0, error = 0;
          for (int64_t c = 0; c < classes; ++c) sum += std::exp(double{row[c]} - row[largest.back()]);
          losses.push_back(std::log(sum) + row[largest.back()] - row[labels.back()]);
          for (int64_t c = 0; c < classes; ++c) {
            dlogits.push_back(0.25 *
                              (std::exp(double{row[c]} - row[largest.back()]) / sum - (c == labels.back())));
            const double difference = double{row[c]} - targets[static_cast<size_t>(i * classes + c)];
            error += difference * difference / static_cast<double>(classes);
            dpredictions.push_back(0.25 * 2 * difference / static_cast<double>(classes));
          }
          errors.push_back(error);
        }
        Floats device_logits(b, logits), device_targets(b, targets);
        Tensor<int32_t> device_labels(b, labels), argmax(b, n);
        b->Argmax(n, classes, device_logits.get(), argmax.get());
        CHECK(argmax.Read() == largest);
        for (const bool gradient : {true, false}) {
          Floats out(b, n), slope(b, n * classes), squared(b, n), squared_slope(b, n * classes);
          b->SoftmaxCrossEntropy(n, classes, device_logits.get(), device_labels.get(), 0.25f, out.get(),
                                 gradient ? slope.get() : nullptr);
          b->MeanSquaredError(n, classes, device_logits.get(), device_targets.get(), 0.25f, squared.get(),
                              gradient ? squared_slope.get() : nullptr);
          CheckClose(out.Read(), losses, 1e-5);
          CheckClose(squared.Read(), errors, 1e-5);
          if (gradient) CheckClose(slope.Read(), dlogits, 1e-5);
          if (gradient) CheckClose(squared_slope.Read(), dpredictions, 1e-5);
        }
      }
    }
  }
  Floats equal(b, std::vector<float>{3, 3, 3});
  Tensor<int32_t> first(b, 1);
  b->Argmax(1, 3, equal.get(), first.get());
  CHECK(first.Read()[0] == 0);
}

void CheckMemoryAndOrder(ComputeBackend* b) {
  const auto huge = b->Allocate(ComputeBackend::Memory::kDevice, std::numeric_limits<size_t>::max() - 8);
  CHECK(huge.status().code() == absl::StatusCode::kResourceExhausted);
  // Work that depends on earlier work, without waiting in between.
  constexpr int64_t kElements = 1000;
  Floats x(b, kElements), y(b, kElements);
  b->Fill(kElements, 1, x.get());
  b->Fill(kElements, 0, y.get());
  for (int i = 0; i < 10; ++i) {
    b->Axpy(kElements, 1, x.get(), y.get());
    b->Scale(kElements, 2, x.get());
  }
  CheckClose(y.Read(), Doubles(kElements, 1023));
}

}  // namespace

void CheckComputeBackend(const std::function<std::unique_ptr<ComputeBackend>()>& make) {
  const std::unique_ptr<ComputeBackend> backend = make();
  SECTION("memory and order") { CheckMemoryAndOrder(backend.get()); }
  SECTION("vectors") { CheckVectors(backend.get()); }
  SECTION("gemm") { CheckGemm(backend.get()); }
  SECTION("bias") { CheckBias(backend.get()); }
  SECTION("conv2d") { CheckConv2d(backend.get()); }
  SECTION("max-pool") { CheckMaxPool(backend.get()); }
  SECTION("activations") { CheckActivations(backend.get()); }
  SECTION("dropout") { CheckDropout(backend.get()); }
  SECTION("losses") { CheckLosses(backend.get()); }
}

}  // namespace weir
