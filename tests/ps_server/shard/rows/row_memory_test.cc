#include <map>
#include <memory>
#include <vector>

#include "catch2/catch.hpp"
#include "ps_server/shard/rows/shard_tables.h"

namespace weir {
namespace {

constexpr size_t kMiB = (1 << 20) / sizeof(float);

// Counts the buffers that it makes, by size. It returns the same memory each time, since no test writes to
// it.
struct Source {
  SlabSource function() {
    return [this](size_t values) -> std::shared_ptr<float> {
      if (none) return nullptr;
      ++made[values];
      return {std::shared_ptr<void>(), &memory};
    };
  }
  bool shared(const std::shared_ptr<float>& rows) const { return rows.get() == &memory; }

  float memory = 0;
  bool none = false;
  std::map<size_t, int> made;
};

TEST_CASE("Large answers get shared memory of the next size, which is used again") {
  Source source;
  RowMemory memory(source.function());
  for (int i = 0; i < 3; ++i) {
    const auto first = memory.Take(kMiB), second = memory.Take(kMiB + 1), third = memory.Take(kMiB / 16);
    CHECK(source.shared(first));
    CHECK(source.shared(second));
    CHECK(source.shared(third));
  }
  CHECK(source.made == std::map<size_t, int>{{kMiB, 2}, {2 * kMiB, 1}});
}

TEST_CASE("Small and very large answers, and those beyond the limit of all, get memory of the heap") {
  Source source;
  RowMemory memory(source.function());
  CHECK_FALSE(source.shared(memory.Take(kMiB / 16 - 1)));
  CHECK_FALSE(source.shared(memory.Take(32 * kMiB + 1)));
  CHECK(source.made.empty());
  std::vector<std::shared_ptr<float>> held;
  for (int i = 0; i < 8; ++i) held.push_back(memory.Take(32 * kMiB));
  for (const auto& rows : held) CHECK(source.shared(rows));
  const auto beyond = memory.Take(kMiB);
  REQUIRE(beyond != nullptr);
  CHECK_FALSE(source.shared(beyond));
  held.pop_back();
  CHECK(source.shared(memory.Take(kMiB)));
  CHECK(source.made == std::map<size_t, int>{{32 * kMiB, 8}});
}

TEST_CASE("Where there is no shared memory, answers get memory of the heap, and the limit is not used up") {
  Source source;
  source.none = true;
  RowMemory memory(source.function());
  for (int i = 0; i < 10; ++i) CHECK_FALSE(source.shared(memory.Take(32 * kMiB)));
  source.none = false;
  CHECK(source.shared(memory.Take(32 * kMiB)));
}

TEST_CASE("The memory of an answer outlives what gave it") {
  std::shared_ptr<float> rows;
  {
    RowMemory memory([](size_t values) { return AllocateSlab(values); });
    rows = memory.Take(kMiB);
  }
  rows.get()[kMiB - 1] = 3;
  CHECK(rows.get()[kMiB - 1] == 3);
}

}  // namespace
}  // namespace weir
