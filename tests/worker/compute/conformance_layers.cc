#include "tests/worker/compute/conformance_tensor.h"

namespace weir::conformance {

void CheckBias(ComputeBackend* b) {
  for (const int64_t rows : {1, 7, 31, 33, 1000}) {
    for (const int64_t columns : {1, 7, 31, 33, 1000}) {
      if (rows * columns > 100000) continue;
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
      CheckClose(dbias.Read(), want_dbias, 1e-5 * std::sqrt(static_cast<double>(rows)));
    }
  }
}

void CheckMaxPool(ComputeBackend* b) {
  const Geometry cases[] = {{1, 1, 1, 1, 1, 0, 0, 1},    {3, 8, 8, 2, 2, 0, 0, 2},  {2, 7, 9, 2, 2, 0, 0, 3},
                            {1, 31, 33, 3, 2, 0, 0, 2},  {2, 5, 6, 3, 1, 0, 0, 1},  {1, 7, 7, 2, 5, 0, 0, 2},
                            {1000, 3, 2, 2, 1, 0, 0, 1}, {1, 40, 3, 3, 1, 0, 0, 33}};
  for (const Geometry& g : cases) {
    CAPTURE(g.channels, g.height, g.width, g.kernel, g.stride, g.n);
    const Window w = g.window();
    std::vector<float> x = Random(g.n * g.channels * g.height * g.width, 5);
    for (float& value : x) value = std::round(value * 4);  // many equal values
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

namespace {

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

}  // namespace

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

  // Cut anywhere, and in place, the result is the same.
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

}  // namespace weir::conformance
