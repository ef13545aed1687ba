#include "client/tensors/gradient_memory.h"

#include "catch2/catch.hpp"

namespace weir {
namespace {

ModelSpec Model() {
  return {{{"a", {2, 3}, TensorKind::kParameter, Initializer::Zeros()},
           {"b", {5}, TensorKind::kParameter, Initializer::Zeros()}}};
}

TEST_CASE("Memory that servers may read is found by the tensors that fill it") {
  GradientMemory memory(Model(), /*shared=*/true);
  const auto one = memory.Take(), two = memory.Take();
  REQUIRE(one != two);
  const auto found = memory.Find({one.get(), one.get() + 6});
  REQUIRE(found != nullptr);
  CHECK(reinterpret_cast<const float*>(found->data()) == one.get());
  CHECK(memory.Find({two.get(), two.get() + 6}) != found);
  // Not all tensors, or not in order.
  CHECK(memory.Find({one.get(), one.get() + 5}) == nullptr);
  CHECK(memory.Find({one.get(), two.get() + 6}) == nullptr);
  CHECK(memory.Find({one.get() + 5, one.get()}) == nullptr);
  const float elsewhere[11] = {};
  CHECK(memory.Find({elsewhere, elsewhere + 6}) == nullptr);
}

TEST_CASE("Memory comes back for the next, unless a server may still read it") {
  GradientMemory memory(Model(), /*shared=*/true);
  auto one = memory.Take();
  const float* const first = one.get();
  one = nullptr;
  one = memory.Take();
  CHECK(one.get() == first);
  const auto segment = memory.Find({first, first + 6});
  memory.GiveUp(*segment);
  CHECK(memory.Find({first, first + 6}) == nullptr);
  one.get()[10] = 1;  // the holder may still write
  one = nullptr;
  CHECK(memory.Take().get() != first);
}

TEST_CASE("Memory outlives what gave it, and where none is shared there is plain memory") {
  std::shared_ptr<float> taken;
  {
    GradientMemory memory(Model(), /*shared=*/true);
    taken = memory.Take();
  }
  taken.get()[10] = 2;
  taken = nullptr;
  GradientMemory plain(Model(), /*shared=*/false);
  taken = plain.Take();
  taken.get()[10] = 2;
  CHECK(plain.Find({taken.get(), taken.get() + 6}) == nullptr);
}

}  // namespace
}  // namespace weir
