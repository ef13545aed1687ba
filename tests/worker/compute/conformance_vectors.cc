#include <cstring>

#include "common/codec/bfloat16.h"
#include "tests/worker/compute/conformance_tensor.h"

namespace weir::conformance {

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

void CheckNonFinite(ComputeBackend* b) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto found_in = [&](const Tensor<int64_t>& found) { return found.Read()[0]; };
  for (const int64_t n : {1, 7, 31, 33, 1000, 10001}) {
    CAPTURE(n);
    std::vector<float> values = Random(n, 3);
    values[static_cast<size_t>(n / 2)] = std::numeric_limits<float>::max();
    values[0] = -std::numeric_limits<float>::denorm_min();
    Floats finite(b, values);
    Tensor<int64_t> found(b, 1);
    b->ResetNonFinite(found.get());
    b->FindNonFinite(n, finite.get(), 0, found.get());
    CHECK(found_in(found) == ComputeBackend::kAllFinite);
    for (const float bad : {kPoison, -kPoison, kInfinity, -kInfinity}) {
      for (const int64_t at : {int64_t{0}, n / 3, n - 1}) {
        CAPTURE(bad, at);
        std::vector<float> broken = values;
        broken[static_cast<size_t>(at)] = bad;
        broken.back() = bad;  // the first one counts
        Floats x(b, broken);
        b->ResetNonFinite(found.get());
        b->FindNonFinite(n, x.get(), 5000, found.get());
        CHECK(found_in(found) == 5000 + at);
        // The result stays, unless an earlier one is found.
        b->FindNonFinite(n, finite.get(), 0, found.get());
        b->FindNonFinite(n, x.get(), 20000, found.get());
        CHECK(found_in(found) == 5000 + at);
        b->FindNonFinite(n, x.get(), 10, found.get());
        CHECK(found_in(found) == 10 + at);
      }
    }
  }
}

void CheckBfloat16(ComputeBackend* b) {
  for (const int64_t n : {1, 7, 31, 33, 1000, 20000}) {
    CAPTURE(n);
    // Bits of all kinds: NaNs, infinities, subnormals, ties.
    RandomStream random(7, static_cast<uint64_t>(n));
    std::vector<float> x(static_cast<size_t>(n));
    for (size_t i = 0; i < x.size(); ++i) {
      uint32_t bits = random.Next();
      if (i % 5 == 1) bits = (bits & 0xffff0000) | 0x8000;  // halfway
      if (i % 7 == 2) bits |= 0x7f800000;                   // NaN or infinity
      if (i % 7 == 3) bits = (bits & 0x80000000) | 0x7f800000;
      if (i % 7 == 4) bits &= 0x807fffff;
      if (i % 7 == 5) bits |= 0x7f7f8000;  // rounds up to infinity
      std::memcpy(&x[i], &bits, sizeof bits);
    }
    std::vector<uint16_t> want(x.size());
    ToBfloat16(x.data(), want.data(), x.size());
    Floats device_x(b, x);
    Tensor<uint16_t> y(b, n);
    b->RoundToBfloat16(n, device_x.get(), y.get());
    CHECK(y.Read() == want);
  }
}

}  // namespace weir::conformance
