#include "tests/worker/compute/conformance_tensor.h"

namespace weir::conformance {
namespace {

// A sum and the sum of its terms' absolute values.
struct Sum {
  double value = 0, magnitude = 0;
  void Add(double term) {
    value += term;
    magnitude += std::abs(term);
  }
};

struct Sums {
  Sums() = default;
  explicit Sums(const std::vector<float>& begin) : sums(begin.size()) {
    for (size_t i = 0; i < begin.size(); ++i) sums[i].Add(begin[i]);
  }
  void Check(const std::vector<float>& got, double unit) const {
    Doubles values, magnitudes;
    for (const Sum& sum : sums) {
      values.push_back(sum.value);
      magnitudes.push_back(sum.magnitude);
    }
    CheckProducts(got, values, magnitudes, unit);
  }
  std::vector<Sum> sums;
};

void CheckGemm(ComputeBackend* b, Precision precision, int64_t m, int64_t n, int64_t k) {
  constexpr float kAlpha = 1.5f;
  const std::vector<float> a = Random(m * k, 1), c = Random(k * n, 2), old = Random(m * n, 3);
  Floats device_a(b, a), device_c(b, c);
  for (const int variant : {0, 1, 2, 3}) {
    const bool ta = variant & 1, tb = variant & 2;
    Sums product;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        Sum sum;
        for (int64_t l = 0; l < k; ++l) {
          sum.Add(double{kAlpha} * a[static_cast<size_t>(ta ? l * m + i : i * k + l)] *
                  c[static_cast<size_t>(tb ? j * k + l : l * n + j)]);
        }
        product.sums.push_back(sum);
      }
    }
    for (const float beta : {0.0f, 1.0f, -0.5f}) {
      CAPTURE(m, n, k, ta, tb, beta);
      Floats out = beta == 0 ? Floats(b, m * n) : Floats(b, old);
      b->Gemm(ta, tb, m, n, k, kAlpha, device_a.get(), device_c.get(), beta, out.get());
      Sums want = product;
      for (size_t i = 0; i < old.size() && beta != 0; ++i) want.sums[i].Add(double{beta} * old[i]);
      want.Check(out.Read(), ProductUnit(precision, k));
    }
  }
}

}  // namespace

void CheckGemm(ComputeBackend* b, Precision precision) {
  for (const int64_t m : kSizes) {
    for (const int64_t n : kSizes) {
      for (const int64_t k : kSizes) CheckGemm(b, precision, m, n, k);
    }
  }
  const int64_t long_shapes[][3] = {{1000, 7, 33}, {31, 1000, 1},  {7, 33, 1000}, {1, 1, 1000},
                                    {1000, 1, 1},  {1, 1000, 7},   {1, 31, 1000}, {1000, 1000, 7},
                                    {33, 10, 64},  {128, 72, 200}, {64, 96, 32}};
  for (const auto& [m, n, k] : long_shapes) CheckGemm(b, precision, m, n, k);
}

void CheckConv2d(ComputeBackend* b, Precision precision) {
  const Geometry cases[] = {{1, 1, 1, 1, 1, 0, 1, 1},   {3, 7, 5, 3, 1, 1, 4, 2}, {2, 9, 31, 5, 1, 2, 7, 3},
                            {1, 28, 28, 5, 1, 0, 8, 2}, {2, 8, 7, 3, 2, 0, 5, 2}, {3, 7, 7, 3, 2, 1, 1, 3},
                            {2, 4, 33, 4, 3, 2, 3, 1},  {1, 2, 2, 5, 1, 2, 2, 2}, {1, 3, 1, 3, 2, 3, 2, 1},
                            {31, 3, 3, 1, 1, 0, 33, 7}, {2, 1, 1, 1, 1, 3, 2, 2}, {1, 6, 6, 2, 3, 0, 2, 33},
                            {7, 1, 1, 1, 1, 0, 31, 33}, {1, 3, 40, 1, 4, 1, 3, 2}};
  for (const Geometry& g : cases) {
    CAPTURE(g.channels, g.height, g.width, g.kernel, g.stride, g.padding, g.filters, g.n);
    const Window w = g.window();
    const int64_t oh = w.out_height(), ow = w.out_width();
    const std::vector<float> x = Random(g.n * g.channels * g.height * g.width, 1);
    const std::vector<float> weight = Random(g.filters * g.channels * g.kernel * g.kernel, 2),
                             bias = Random(g.filters, 3);
    const std::vector<float> dy = Random(g.n * g.filters * oh * ow, 4);
    Sums y, dx, dweight(weight), dbias(bias);
    dx.sums.resize(x.size());
    for (int64_t i = 0; i < g.n; ++i) {
      for (int64_t f = 0; f < g.filters; ++f) {
        for (int64_t position = 0; position < oh * ow; ++position) {
          Sum sum;
          sum.Add(bias[static_cast<size_t>(f)]);
          const double slope = dy[y.sums.size()];
          dbias.sums[static_cast<size_t>(f)].Add(slope);
          for (int64_t c = 0; c < g.channels; ++c) {
            for (int64_t ky = 0; ky < g.kernel; ++ky) {
              for (int64_t kx = 0; kx < g.kernel; ++kx) {
                const int64_t iy = position / ow * g.stride + ky - g.padding,
                              ix = position % ow * g.stride + kx - g.padding;
                if (iy < 0 || iy >= g.height || ix < 0 || ix >= g.width) continue;
                const size_t at = static_cast<size_t>(((i * g.channels + c) * g.height + iy) * g.width + ix);
                const size_t tap =
                    static_cast<size_t>(((f * g.channels + c) * g.kernel + ky) * g.kernel + kx);
                sum.Add(double{x[at]} * weight[tap]);
                dx.sums[at].Add(slope * weight[tap]);
                dweight.sums[tap].Add(slope * x[at]);
              }
            }
          }
          y.sums.push_back(sum);
        }
      }
    }
    Floats device_x(b, x), device_weight(b, weight), device_bias(b, bias), device_dy(b, dy);
    Floats device_y(b, static_cast<int64_t>(y.sums.size())), device_dx(b, static_cast<int64_t>(x.size()));
    const int64_t patch = g.channels * g.kernel * g.kernel;
    b->Conv2dForward(w, g.filters, g.n, device_x.get(), device_weight.get(), device_bias.get(),
                     device_y.get());
    y.Check(device_y.Read(), ProductUnit(precision, patch));
    for (const bool need_dx : {true, false}) {
      Floats device_dweight(b, weight), device_dbias(b, bias);
      b->Conv2dBackward(w, g.filters, g.n, device_x.get(), device_weight.get(), device_dy.get(),
                        need_dx ? device_dx.get() : nullptr, device_dweight.get(), device_dbias.get());
      dx.Check(device_dx.Read(), ProductUnit(precision, g.filters * g.kernel * g.kernel));
      dweight.Check(device_dweight.Read(), ProductUnit(precision, g.n * oh * ow));
      // A sum of float32, whatever the precision of products.
      dbias.Check(device_dbias.Read(), ProductUnit(Precision::kFloat32, g.n * oh * ow));
    }
  }
}

}  // namespace weir::conformance
