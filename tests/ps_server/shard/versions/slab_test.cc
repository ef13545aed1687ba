#include <cstdint>
#include <memory>

#include "catch2/catch.hpp"
#include "ps_server/shard/versions/version_readers.h"

namespace weir {
namespace {

TEST_CASE("Slabs are aligned, whatever their size") {
  for (const size_t elements : {size_t{1}, size_t{100}, size_t{1} << 20}) {
    const std::shared_ptr<float> slab = AllocateSlab(elements);
    CHECK(reinterpret_cast<uintptr_t>(slab.get()) % 64 == 0);
    slab.get()[elements - 1] = 1;
  }
}

TEST_CASE("A slab of nothing, for a shard that has no blocks") { CHECK(AllocateSlab(0) != nullptr); }

TEST_CASE("Where a source has no memory, the slab is memory of this process") {
  std::shared_ptr<float> has = AllocateSlab(8);
  const SlabSource source = OrOwnMemory([&](size_t) { return has; });
  CHECK(source(8) == has);
  has = nullptr;
  const std::shared_ptr<float> own = source(8);
  REQUIRE(own != nullptr);
  own.get()[7] = 1;
}

}  // namespace
}  // namespace weir
