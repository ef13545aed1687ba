#include <cstring>

#include "common/codec/floats.h"
#include "tests/worker/compute/conformance_tensor.h"

namespace weir::conformance {

void CheckVectors(ComputeBackend* b) {
  for (const int64_t n : {1, 7, 31, 33, 1000}) {
    CAPTURE(n);
    const std::vector<float> x = Random(n, 1), y = Random(n, 2);
    Floats filled(b, n), sum(b, y), addend(b, x);
    b->Fill(n, 2.5f, filled.get());
    CheckClose(filled.Read(), Doubles(static_cast<size_t>(n), 2.5));
    b->Axpy(n, 0.5f, addend.get(), sum.get());
    Doubles want_sum;
    for (size_t i = 0; i < x.size(); ++i) want_sum.push_back(y[i] + 0.5 * x[i]);
    CheckClose(sum.Read(), want_sum);
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
