#include <cstring>

#include "tests/worker/compute/conformance_tensor.h"

namespace weir::conformance {
namespace {

constexpr int64_t kElements = 1000;

Buffer<float> PinnedFloats(ComputeBackend* b) {
  auto buffer = Buffer<float>::Make(b, ComputeBackend::Memory::kHost, kElements);
  REQUIRE(buffer.ok());
  return std::move(*buffer);
}

bool AllAre(float value, const Buffer<float>& buffer) {
  return std::all_of(buffer.get(), buffer.get() + kElements, [&](float x) { return x == value; });
}

// x *= 2
void Double(ComputeBackend* b, Floats& x, Floats& spare) {
  b->Fill(kElements, 0, spare.get());
  b->Axpy(kElements, 1, x.get(), spare.get());
  b->Axpy(kElements, 1, spare.get(), x.get());
}

}  // namespace

void CheckMemoryAndOrder(ComputeBackend* b) {
  const auto huge = b->Allocate(ComputeBackend::Memory::kDevice, std::numeric_limits<size_t>::max() - 8);
  CHECK(huge.status().code() == absl::StatusCode::kResourceExhausted);
  // Work that depends on earlier work, without waits in between.
  Floats x(b, kElements), y(b, kElements), spare(b, kElements);
  b->Fill(kElements, 1, x.get());
  b->Fill(kElements, 0, y.get());
  for (int i = 0; i < 10; ++i) {
    b->Axpy(kElements, 1, x.get(), y.get());
    Double(b, x, spare);
  }
  CheckClose(y.Read(), Doubles(kElements, 1023));

  // Pieces of all sizes, freed in an order other than that of their allocation, do not overlap.
  std::vector<Tensor<int32_t>> pieces;
  for (int32_t i = 0; i < 40; ++i) {
    pieces.emplace_back(b, std::vector<int32_t>(static_cast<size_t>(1 + i * 97 % 300), i));
    if (i % 3 == 2) pieces.erase(pieces.begin() + i / 3);
  }
  for (const Tensor<int32_t>& piece : pieces) {
    const std::vector<int32_t> values = piece.Read();
    CHECK(std::all_of(values.begin(), values.end(), [&](int32_t v) { return v == values[0]; }));
  }
}

void CheckCopies(ComputeBackend* b) {
  // A copy to the host has the values computed before it, while later work runs beside it.
  {
    Floats x(b, kElements), other(b, kElements);
    const Buffer<float> first = PinnedFloats(b), second = PinnedFloats(b);
    b->Fill(kElements, 3, x.get());
    b->CopyToHost(first.get(), x.get(), kElements * sizeof(float));
    const uint64_t mark = b->Record();
    b->Fill(kElements, 1, other.get());
    b->Axpy(kElements, 1, x.get(), other.get());
    b->CopyToHost(second.get(), other.get(), kElements * sizeof(float));
    for (int i = 0; i < 10; ++i) b->Record();
    REQUIRE(b->Wait(mark).ok());
    CHECK(AllAre(3, first));
    b->Fill(kElements, 5, x.get());  // free again behind the mark
    REQUIRE(b->Wait(b->Record()).ok());
    CHECK(AllAre(4, second));
  }
  // Batches that are sent ahead, two in turns: copy i waits only for the use of batch i - 2.
  {
    constexpr int kBatches = 20;
    Floats batches[2] = {Floats(b, kElements), Floats(b, kElements)};
    std::vector<Buffer<float>> staged;
    Floats sum(b, kElements), spare(b, kElements);
    uint64_t used[2] = {};
    b->Fill(kElements, 0, sum.get());
    const auto send = [&](int i) {
      staged.push_back(PinnedFloats(b));
      std::fill_n(staged.back().get(), kElements, static_cast<float>(i + 1));
      b->CopyToDevice(batches[i % 2].get(), staged.back().get(), kElements * sizeof(float), used[i % 2]);
    };
    send(0);
    for (int i = 0; i < kBatches; ++i) {
      if (i + 1 < kBatches) send(i + 1);
      Double(b, batches[i % 2], spare);
      b->Axpy(kElements, 1, batches[i % 2].get(), sum.get());
      used[i % 2] = b->Record();
    }
    CheckClose(sum.Read(), Doubles(kElements, kBatches * (kBatches + 1)));
  }
  // To and fro through the same memory, without waits.
  {
    constexpr int kTrips = 20;
    Floats x(b, kElements);
    std::vector<Buffer<float>> staged, back;
    for (int i = 0; i < kTrips; ++i) {
      staged.push_back(PinnedFloats(b));
      back.push_back(PinnedFloats(b));
      std::fill_n(staged.back().get(), kElements, static_cast<float>(i));
    }
    for (int i = 0; i < kTrips; ++i) {
      const auto at = static_cast<size_t>(i);
      b->CopyToDevice(x.get(), staged[at].get(), kElements * sizeof(float));
      b->CopyToHost(back[at].get(), x.get(), kElements * sizeof(float));
    }
    REQUIRE(b->Wait(b->Record()).ok());
    for (int i = 0; i < kTrips; ++i) CHECK(AllAre(static_cast<float>(i), back[static_cast<size_t>(i)]));
  }
  // Copies ahead, two in turns: each begins while the values of the one before are in use, and is joined when
  // its own values are needed.
  {
    constexpr int kRounds = 20;
    Floats values[2] = {Floats(b, kElements), Floats(b, kElements)};
    std::vector<Buffer<float>> staged;
    Floats sum(b, kElements), spare(b, kElements);
    uint64_t used[2] = {}, copied[2] = {};
    b->Fill(kElements, 0, sum.get());
    const auto send = [&](int i) {
      staged.push_back(PinnedFloats(b));
      std::fill_n(staged.back().get(), kElements, static_cast<float>(i + 1));
      b->CopyAhead(values[i % 2].get(), staged.back().get(), kElements * sizeof(float), used[i % 2]);
      copied[i % 2] = b->Record();
    };
    send(0);
    for (int i = 0; i < kRounds; ++i) {
      if (i + 1 < kRounds) send(i + 1);
      b->Join(copied[i % 2]);
      Double(b, values[i % 2], spare);
      b->Axpy(kElements, 1, values[i % 2].get(), sum.get());
      used[i % 2] = b->Record();
    }
    CheckClose(sum.Read(), Doubles(kElements, kRounds * (kRounds + 1)));
    // Their memory on the host is free again behind a mark that has passed.
    b->CopyAhead(values[0].get(), staged[0].get(), kElements * sizeof(float), b->Record());
    const uint64_t mark = b->Record();
    while (!b->Passed(mark)) {
    }
    std::fill_n(staged[0].get(), kElements, -1.0f);
    b->Join(mark);
    CheckClose(values[0].Read(), Doubles(kElements, 1));
    CHECK(b->Passed(mark));
  }
  // Marks far in the past.
  {
    Floats x(b, kElements);
    const Buffer<float> staged = PinnedFloats(b), back = PinnedFloats(b);
    const uint64_t early = b->Record();
    for (int i = 0; i < 600; ++i) {
      const uint64_t mark = b->Record();
      if (i % 100 != 0) continue;
      std::fill_n(staged.get(), kElements, static_cast<float>(i));
      b->CopyToDevice(x.get(), staged.get(), kElements * sizeof(float));
      b->CopyToHost(back.get(), x.get(), kElements * sizeof(float));
      REQUIRE(b->Wait(mark).ok());
      REQUIRE(b->Wait(b->Record()).ok());
      CHECK(AllAre(static_cast<float>(i), back));
    }
    b->Fill(kElements, 7, x.get());
    b->CopyToHost(back.get(), x.get(), kElements * sizeof(float));
    const uint64_t past = b->Record();
    for (int i = 0; i < 600; ++i) b->Record();
    REQUIRE(b->Wait(past).ok());
    CHECK(AllAre(7, back));
    CHECK(b->Wait(early).ok());
    b->CopyToDevice(x.get(), staged.get(), kElements * sizeof(float), early);
    CheckClose(x.Read(), Doubles(kElements, 500));
  }
}

void CheckCapture(ComputeBackend* b) {
  constexpr int64_t kN = 33, kIn = 31, kOut = 7;
  const Window window{1, 5, 6, 3, 1, 1};
  Floats x(b, Random(kN * kIn, 1)), weight(b, Random(kIn * kOut, 2)), bias(b, Random(kOut, 3));
  Floats y(b, kN * kOut), dbias(b, kOut), dweight(b, kIn * kOut), dx(b, kN * kIn);
  Floats image(b, Random(30, 4)), kernels(b, Random(18, 5)), image_y(b, 60), image_bias(b, Random(2, 6));
  const auto step = [&] {
    b->Fill(kOut, 0, dbias.get());
    b->Fill(kIn * kOut, 0, dweight.get());
    b->Gemm(false, false, kN, kOut, kIn, 1, x.get(), weight.get(), 0, y.get());
    b->AddBias(kN, kOut, bias.get(), y.get());
    b->ActivationForward(Activation::kTanh, kN * kOut, y.get(), y.get());
    b->Dropout({0.5f, 1, 2, 0}, kN * kOut, y.get(), y.get());
    b->BiasGradient(kN, kOut, y.get(), dbias.get());
    b->Gemm(true, false, kIn, kOut, kN, 1, x.get(), y.get(), 1, dweight.get());
    b->Gemm(false, true, kN, kIn, kOut, 1, y.get(), weight.get(), 0, dx.get());
    b->Conv2dForward(window, 2, 1, image.get(), kernels.get(), image_bias.get(), image_y.get());
  };
  const auto results = [&] {
    std::vector<float> all;
    for (const Floats* tensor : {&y, &dbias, &dweight, &dx, &image_y}) {
      const std::vector<float> values = tensor->Read();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  step();
  const std::vector<float> want = results();
  const int64_t allocations = b->allocations();
  auto captured = b->Capture(step);
  REQUIRE(captured.ok());
  for (int i = 0; i < 3; ++i) {
    b->Fill(kN * kOut, kPoison, y.get());
    b->Fill(kN * kIn, kPoison, dx.get());
    b->Fill(60, kPoison, image_y.get());
    b->Replay(captured->get());
    CHECK(results() == want);
  }
  // Other data, same captured calls.
  b->Fill(kN * kIn, 0.5f, x.get());
  b->Replay(captured->get());
  const std::vector<float> replayed = results();
  CHECK(replayed != want);
  step();
  CHECK(results() == replayed);
  CHECK(b->allocations() == allocations);
}

void CheckSameBits(const std::function<std::unique_ptr<ComputeBackend>()>& make) {
  std::vector<float> first;
  for (int run = 0; run < 3; ++run) {
    const std::unique_ptr<ComputeBackend> backend = make();
    ComputeBackend* const b = backend.get();
    constexpr int64_t kN = 33, kIn = 1000, kOut = 31;
    const Window window{3, 9, 7, 3, 2, 1}, pool{3, 9, 7, 3, 1, 0};
    const int64_t outputs = window.out_height() * window.out_width(),
                  pooled = 3 * pool.out_height() * pool.out_width();
    Floats x(b, Random(kN * kIn, 1)), weight(b, Random(kIn * kOut, 2)), y(b, kN * kOut);
    Floats dbias(b, Random(kOut, 3)), dweight(b, Random(kIn * kOut, 4));
    Floats image(b, Random(kN * 189, 5)), filters(b, Random(5 * 27, 6)), filter_bias(b, Random(5, 7));
    Floats image_y(b, kN * 5 * outputs), dimage(b, kN * 189), dfilters(b, Random(5 * 27, 8));
    Floats dfilter_bias(b, Random(5, 9)), pool_y(b, kN * pooled), dpool(b, kN * 189);
    Floats losses(b, kN), dlogits(b, kN * kOut);
    Tensor<int32_t> argmax(b, kN * pooled), labels(b, std::vector<int32_t>(kN, 3));
    b->Gemm(false, false, kN, kOut, kIn, 1, x.get(), weight.get(), 0, y.get());
    b->Gemm(true, false, kIn, kOut, kN, 1, x.get(), y.get(), 1, dweight.get());
    b->BiasGradient(kN, kOut, y.get(), dbias.get());
    b->SoftmaxCrossEntropy(kN, kOut, y.get(), labels.get(), 0.1f, losses.get(), dlogits.get());
    b->Conv2dForward(window, 5, kN, image.get(), filters.get(), filter_bias.get(), image_y.get());
    b->Conv2dBackward(window, 5, kN, image.get(), filters.get(), image_y.get(), dimage.get(), dfilters.get(),
                      dfilter_bias.get());
    b->MaxPoolForward(pool, kN, image.get(), pool_y.get(), argmax.get());
    b->MaxPoolBackward(pool, kN, pool_y.get(), argmax.get(), dpool.get());
    std::vector<float> all;
    for (const Floats* tensor : {&y, &dweight, &dbias, &losses, &dlogits, &image_y, &dimage, &dfilters,
                                 &dfilter_bias, &pool_y, &dpool}) {
      const std::vector<float> values = tensor->Read();
      all.insert(all.end(), values.begin(), values.end());
    }
    if (run == 0) first = all;
    CHECK(all == first);
  }
}

}  // namespace weir::conformance
