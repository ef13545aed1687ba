// The CUDA backend on an emulated device.

#include <functional>
#include <iterator>
#include <memory>
#include <vector>

#include "catch2/catch.hpp"
#include "common/codec/floats.h"
#include "tests/worker/compute/compute_conformance.h"
#include "tests/worker/compute/cuda_emulation/emulation.h"
#include "worker/compute/compute_backend.h"

namespace weir {
namespace {

using cuda_emulation::LiveObjects;
using cuda_emulation::Machine;
using cuda_emulation::MakeBackend;
using cuda_emulation::SetMachine;

constexpr auto kDevice = ComputeBackend::Memory::kDevice;

// chunk 0: each tensor has its own guards, and convolutions take one image at a time.
void CheckEmulated(Precision precision, uint64_t seed, size_t chunk_bytes) {
  Machine machine;
  machine.seed = seed;
  SetMachine(machine);
  CheckComputeBackend([&] { return *MakeBackend(0, precision, chunk_bytes); }, precision);
}

TEST_CASE("The CUDA code conforms in float32, tensor by tensor") { CheckEmulated(Precision::kFloat32, 1, 0); }
TEST_CASE("The CUDA code conforms in float32") { CheckEmulated(Precision::kFloat32, 2, 64 << 20); }
TEST_CASE("The CUDA code conforms in tf32") { CheckEmulated(Precision::kTf32, 3, 1 << 20); }
TEST_CASE("The CUDA code conforms in bfloat16, tensor by tensor") {
  CheckEmulated(Precision::kBfloat16, 4, 0);
}
TEST_CASE("The CUDA code conforms in bfloat16") { CheckEmulated(Precision::kBfloat16, 5, 64 << 20); }

TEST_CASE("Products are of the precision that was asked for") {
  SetMachine({});
  // 1 + 2^-i: exact in float32, rounded to 2^-10 in TF32, to 2^-7 in bfloat16. 1 + 2^-8 is halfway, and
  // rounds to the even 1.
  const auto square = [](Precision precision, float x) {
    const auto backend = *MakeBackend(0, precision, 0);
    auto a = *Buffer<float>::Make(backend.get(), kDevice, 1),
         c = *Buffer<float>::Make(backend.get(), kDevice, 1);
    backend->Fill(1, x, a.get());
    backend->Gemm(false, false, 1, 1, 1, 1, a.get(), a.get(), 0, c.get());
    float result = 0;
    backend->CopyToHost(&result, c.get(), sizeof result);
    REQUIRE(backend->Wait(backend->Record()).ok());
    return result;
  };
  const float fine = 1 + 1.0f / (1 << 12), middle = 1 + 1.0f / (1 << 10), half = 1 + 1.0f / (1 << 8),
              coarse = 1 + 1.0f / (1 << 7);
  CHECK(square(Precision::kFloat32, fine) == fine * fine);
  CHECK(square(Precision::kTf32, fine) == 1);
  CHECK(square(Precision::kTf32, middle) == middle * middle);
  CHECK(square(Precision::kBfloat16, half) == 1);
  CHECK(square(Precision::kBfloat16, coarse) == coarse * coarse);
}

TEST_CASE("Products see every write to what was rounded for them") {
  SetMachine({});
  const auto owner = *MakeBackend(0, Precision::kBfloat16, 0);
  ComputeBackend* const b = owner.get();
  constexpr int64_t kSide = 6, kN = kSide * kSide;
  const auto make = [&](int64_t n) { return *Buffer<float>::Make(b, kDevice, n); };
  auto x = make(16 + kN), unit = make(kN), product = make(kN), other = make(kN), small = make(kN);
  auto labels = *Buffer<int32_t>::Make(b, kDevice, kN), argmax = *Buffer<int32_t>::Make(b, kDevice, kN);
  std::vector<float> host(kN), identity(kN), numbers(kN);
  const std::vector<int32_t> zeros(kN);
  for (size_t i = 0; i < kSide; ++i) identity[i * kSide + i] = 1;
  for (size_t i = 0; i < kN; ++i) numbers[i] = 0.37f * static_cast<float>(i % 11) - 1.3f;
  const auto copy = [&](auto* to, const auto& from) { b->CopyToDevice(to, from.data(), kN * 4); };
  copy(unit.get(), identity);
  copy(other.get(), numbers);
  copy(labels.get(), zeros);
  copy(argmax.get(), zeros);
  const auto read = [&](float* from) {
    std::vector<float> values(kN);
    b->CopyToHost(values.data(), from, kN * sizeof(float));
    REQUIRE(b->Wait(b->Record()).ok());
    return values;
  };
  const Window same{1, kSide, kSide, 3, 1, 1}, pixels{1, kSide, kSide, 1, 1, 0},
      pool{1, kSide, kSide, 1, 1, 0};
  float* const p = x.get() + 16;
  float* const q = other.get();
  float* const r = small.get();
  std::unique_ptr<ComputeBackend::Captured> captured;
  const std::function<void()> writes[] = {
      [&] { b->Fill(kN - 1, 0.3f, p + 1); },
      [&] { b->Fill(17, 0.3f, x.get()); },
      [&] { b->Fill(1, 5, p + kN - 1); },
      [&] { b->Axpy(kN, 1, q, p); },
      [&] { b->Gemm(false, true, kSide, kSide, kSide, 1, q, q, 0, p); },
      [&] { b->AddBias(kSide, kSide, q, p); },
      [&] { b->BiasGradient(1, kN, q, p); },
      [&] { b->Conv2dForward(same, 1, 1, q, q, q, p); },
      [&] { b->Conv2dBackward(pixels, 1, 1, q, q + 2, q, p, r, r); },
      [&] { b->Conv2dBackward(same, 1, 1, q, q, q, nullptr, p, r); },
      [&] { b->Conv2dBackward(pixels, 1, 1, q, q, q, nullptr, r, p); },
      [&] { b->MaxPoolForward(pool, 1, q, p, argmax.get()); },
      [&] {
        b->MaxPoolBackward({kN, 1, 1, 1, 1, 0}, 1, q, labels.get(), p);
      },
      [&] { b->ActivationForward(Activation::kTanh, kN, q, p); },
      [&] { b->ActivationBackward(Activation::kGelu, kN, q, q, q, p); },
      [&] {
        b->Dropout({0.5f, 1, 2, 0}, kN, q, p);
      },
      [&] { b->SoftmaxCrossEntropy(kSide, kSide, q, labels.get(), 1, r, p); },
      [&] { b->SoftmaxCrossEntropy(kSide, kSide, q, labels.get(), 1, p, r); },
      [&] { b->MeanSquaredError(kSide, kSide, q, unit.get(), 1, r, p); },
      [&] { b->MeanSquaredError(kSide, kSide, q, unit.get(), 1, p, r); },
      [&] { b->SigmoidCrossEntropy(kN, q, unit.get(), 1, r, p); },
      [&] { b->SigmoidCrossEntropy(kN, q, unit.get(), 1, p, r); },
      [&] { copy(p, numbers); },
      [&] { b->Replay(captured.get()); },
  };
  const auto multiply = [&] {
    b->Gemm(false, false, kSide, kSide, kSide, 1, p, unit.get(), 0, product.get());
  };
  b->Fill(kN, 1, p);
  multiply();
  captured = *b->Capture([&] {
    multiply();
    b->Axpy(kN, 1, q, p);
  });
  for (size_t i = 0; i < std::size(writes); ++i) {
    CAPTURE(i);
    b->Fill(kN, 99, p);
    multiply();
    writes[i]();
    const std::vector<float> after = read(p);
    CHECK(after != std::vector<float>(kN, 99));
    std::vector<uint16_t> rounded(kN);
    ToBfloat16(after.data(), rounded.data(), kN);
    FromBfloat16(rounded.data(), host.data(), kN);
    multiply();
    CHECK(read(product.get()) == host);
  }
  // Operands that a capture rounded have not been rounded in a run.
  b->Fill(kN, 2, p);
  REQUIRE(b->Capture(multiply).ok());
  multiply();
  CHECK(read(product.get()) == std::vector<float>(kN, 2));
  // Memory that now belongs to another tensor; rounded operands go with their tensor.
  const int64_t live = LiveObjects();
  for (int i = 1; i < 4; ++i) {
    auto fresh = make(kN);
    b->Fill(kN, static_cast<float>(i), fresh.get());
    b->Gemm(false, false, kSide, kSide, kSide, 1, fresh.get(), unit.get(), 0, product.get());
    CHECK(read(product.get()) == std::vector<float>(kN, static_cast<float>(i)));
  }
  CHECK(LiveObjects() == live);
}

TEST_CASE("Nothing is left behind") {
  SetMachine({});
  REQUIRE(LiveObjects() == 0);
  {
    const auto backend = *MakeBackend(0, Precision::kBfloat16, 0);
    auto x = *Buffer<float>::Make(backend.get(), kDevice, 100);
    auto y = *Buffer<float>::Make(backend.get(), ComputeBackend::Memory::kHost, 100);
    const auto step = [&] {
      backend->Gemm(false, false, 10, 10, 10, 1, x.get(), x.get(), 1, x.get());
      backend->BiasGradient(1, 100, x.get(), x.get());
    };
    step();
    const auto captured = backend->Capture(step);
    REQUIRE(captured.ok());
    backend->Replay(captured->get());
    backend->CopyToHost(y.get(), x.get(), 100 * sizeof(float));
    CHECK(LiveObjects() > 10);
  }
  CHECK(LiveObjects() == 0);
  Machine machine;
  machine.memory_bytes = 1 << 20;  // too little to begin with
  SetMachine(machine);
  CHECK(MakeBackend(0, Precision::kFloat32, 0).status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(LiveObjects() == 0);
}

TEST_CASE("The same shapes ask the device for memory once") {
  SetMachine({});
  const auto backend = *MakeBackend(0, Precision::kBfloat16, 1 << 20);
  auto x = *Buffer<float>::Make(backend.get(), kDevice, 1 << 20);
  const auto pass = [&](int64_t n) {
    float* const p = x.get() + 16;
    backend->Gemm(false, false, n, n, n, 1, p, p + n * n, 0, p + 2 * n * n);
    backend->BiasGradient(n, n, p, p + n * n);
    backend->Conv2dForward({1, n, n, 3, 1, 1}, 2, 3, p, p + 4 * n * n, p + 5 * n * n, p + 6 * n * n);
  };
  pass(20);
  const int64_t allocations = backend->allocations();
  pass(20);
  pass(10);
  CHECK(backend->allocations() == allocations);
  pass(200);
  CHECK(backend->allocations() > allocations);
}

TEST_CASE("A device without memory says how much there is") {
  Machine machine;
  machine.memory_bytes = size_t{40} << 20;
  SetMachine(machine);
  const auto backend = *MakeBackend(0, Precision::kFloat32, 1 << 20);
  const absl::Status status = Buffer<float>::Make(backend.get(), kDevice, 4 << 20).status();
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK(
      status.message() ==
      "no memory on the device for 16777216 bytes: 8388608 of its 41943040 are free; use a smaller batch or "
      "more micro-batches");
  // Smaller allocations still work.
  auto x = Buffer<float>::Make(backend.get(), kDevice, 1000);
  REQUIRE(x.ok());
  backend->Fill(1000, 1, x->get());
  CHECK(backend->Wait(backend->Record()).ok());
  // Scratch memory that does not fit fails the work.
  auto big = Buffer<float>::Make(backend.get(), kDevice, 1 << 20);
  REQUIRE(big.ok());
  backend->Conv2dForward({1, 512, 512, 5, 1, 2}, 1, 1, big->get(), x->get(), x->get(), big->get());
  CHECK(backend->Wait(backend->Record()).code() == absl::StatusCode::kResourceExhausted);
}

TEST_CASE("A write out of bounds breaks the device for good") {
  SetMachine({});
  const auto backend = *MakeBackend(0, Precision::kFloat32, 0);
  {
    auto x = *Buffer<float>::Make(backend.get(), kDevice, 64);
    backend->Fill(65, 1, x.get());
    const absl::Status status = backend->Wait(backend->Record());
    CHECK(status.code() == absl::StatusCode::kInternal);
    CHECK(status.message() == "compute on the device: cudaErrorIllegalAddress (emulated)");
    backend->Fill(64, 1, x.get());
    CHECK(backend->Wait(backend->Record()) == status);
    CHECK(Buffer<float>::Make(backend.get(), kDevice, 64).status() == status);
  }
  SetMachine({});
}

TEST_CASE("What cannot be captured fails the capture alone") {
  SetMachine({});
  const auto backend = *MakeBackend(0, Precision::kFloat32, 1 << 20);
  auto x = *Buffer<float>::Make(backend.get(), kDevice, 100);
  float host[100];
  CHECK(backend->Capture([&] { backend->CopyToHost(host, x.get(), sizeof host); }).status().message() ==
        "CopyToHost cannot be captured");
  CHECK(backend->Capture([&] { backend->BiasGradient(1, 50, x.get(), x.get() + 50); }).status().message() ==
        "calls with these sizes must be made once before they are captured");
  backend->Fill(100, 3, x.get());
  backend->CopyToHost(host, x.get(), sizeof host);
  REQUIRE(backend->Wait(backend->Record()).ok());
  CHECK(host[99] == 3);
}

TEST_CASE("Two backends share a device") {
  SetMachine({});
  const auto first = *MakeBackend(0, Precision::kFloat32, 1 << 20),
             second = *MakeBackend(0, Precision::kBfloat16, 1 << 20);
  auto x = *Buffer<float>::Make(first.get(), kDevice, 10),
       y = *Buffer<float>::Make(second.get(), kDevice, 10);
  first->Fill(10, 1, x.get());
  second->Fill(10, 2, y.get());
  float a[10], b[10];
  first->CopyToHost(a, x.get(), sizeof a);
  second->CopyToHost(b, y.get(), sizeof b);
  REQUIRE(first->Wait(first->Record()).ok());
  REQUIRE(second->Wait(second->Record()).ok());
  CHECK(a[9] == 1);
  CHECK(b[9] == 2);
}

}  // namespace
}  // namespace weir
