#include "common/protocol/part_assignment.h"

#include <catch2/catch.hpp>

namespace weir {
namespace {

TEST_CASE("The parts of the steps are the batches of the job, in their order, and no more") {
  constexpr uint32_t kParts = 4;
  for (uint64_t batches = 0; batches < 20; ++batches) {
    uint64_t next = 0;
    for (uint64_t step = 0; step < StepsFor(batches, kParts); ++step) {
      CHECK(PartsOf(step, kParts, batches) > 0);
      for (uint32_t part = 0; part < PartsOf(step, kParts, batches); ++part) {
        CHECK(BatchOf(step, part, kParts) == next++);
      }
      CHECK(BatchesIn(step + 1, kParts, batches) == next);
    }
    CHECK(next == batches);
    CHECK(PartsOf(StepsFor(batches, kParts), kParts, batches) == 0);
  }
}

TEST_CASE("A part belongs to a worker by its rank, or by the shares if they are all parts of a step") {
  for (uint32_t part = 0; part < 7; ++part) {
    CHECK(PartOwners({0, 0, 0}, 7).OwnerOf(part) == part % 3);
    CHECK(PartOwners({4, 2, 0}, 7).OwnerOf(part) == part % 3);  // 6 of 7
    CHECK(PartOwners({4, 0, 3}, 7).OwnerOf(part) == (part < 4 ? 0u : 2u));
  }
}

TEST_CASE("A step may commit without as many parts as there are backup workers, but not without all") {
  CHECK(PartsToCommit(4, 0) == 4);
  CHECK(PartsToCommit(4, 1) == 3);
  CHECK(PartsToCommit(1, 1) == 1);
  CHECK(PartsToCommit(0, 1) == 0);
}

}  // namespace
}  // namespace weir
