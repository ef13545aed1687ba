#include "common/system/float_pool.h"

#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "catch2/catch.hpp"

namespace weir {
namespace {

// Makes memory and counts what of it is left.
struct Source {
  std::shared_ptr<float> operator()(size_t elements) const {
    ++*made;
    return std::shared_ptr<float>(new float[elements], [freed = freed](const float* done) {
      ++*freed;
      delete[] done;
    });
  }
  std::shared_ptr<int> made = std::make_shared<int>(0), freed = std::make_shared<int>(0);
};

TEST_CASE("buffers are apart, and used again when nobody holds them") {
  const Source source;
  FloatPool<> pool(100, source);
  CHECK(pool.elements() == 100);
  std::shared_ptr<float> a = pool.Take();
  const std::shared_ptr<float> b = pool.Take();
  CHECK(a.get() != b.get());
  const float* const first = a.get();
  std::shared_ptr<float> reader = a;
  a.reset();
  CHECK(pool.Take().get() != first);  // a reader still holds it
  CHECK(*source.made == 3);
  reader.reset();
  CHECK(pool.Take().get() == first);
  CHECK(*source.made == 3);
  CHECK(*source.freed == 0);
}

TEST_CASE("a buffer may outlive its pool, and all memory is freed when both are gone") {
  const Source source;
  std::optional<FloatPool<>> pool(std::in_place, 16, source);
  std::shared_ptr<float> buffer = pool->Take();
  pool->Take();
  CHECK(*source.freed == 0);
  const bool pool_first = GENERATE(true, false);
  if (pool_first) pool.reset();
  buffer.get()[15] = 1;
  CHECK(buffer.get()[15] == 1);
  buffer.reset();
  CHECK(*source.freed == (pool_first ? 2 : 0));
  pool.reset();
  CHECK(*source.freed == 2);
}

TEST_CASE("memory that was added is given out before any is made") {
  const Source source;
  FloatPool<> pool(4, source);
  std::vector<float> mine(4);
  // Not the pool's to free.
  pool.Add(std::shared_ptr<float>(std::shared_ptr<void>(), mine.data()));
  std::shared_ptr<float> taken = pool.Take();
  CHECK(taken.get() == mine.data());
  CHECK(pool.Take().get() != mine.data());
  taken.reset();
  CHECK(pool.Take().get() == mine.data());
  CHECK(*source.made == 1);
}

TEST_CASE("a source that has no memory says why, and may be asked again") {
  bool full = true;
  FloatPool<absl::StatusOr<std::shared_ptr<float>>> pool(
      8, [&](size_t elements) -> absl::StatusOr<std::shared_ptr<float>> {
        if (full) return absl::ResourceExhaustedError("no room");
        return HeapFloats(elements);
      });
  CHECK(pool.Take().status() == absl::ResourceExhaustedError("no room"));
  full = false;
  const float* first = nullptr;
  {
    const absl::StatusOr<std::shared_ptr<float>> taken = pool.Take();
    REQUIRE(taken.ok());
    first = taken->get();
  }
  full = true;
  const absl::StatusOr<std::shared_ptr<float>> again = pool.Take();
  REQUIRE(again.ok());
  CHECK(again->get() == first);
}

TEST_CASE("threads take and give back at once") {
  FloatPool<> pool(64, HeapFloats);
  std::vector<std::thread> threads;
  std::vector<int> torn(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        const std::shared_ptr<float> buffer = pool.Take();
        for (int e = 0; e < 64; ++e) buffer.get()[e] = static_cast<float>(t);
        for (int e = 0; e < 64; ++e) torn[t] += buffer.get()[e] != static_cast<float>(t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(torn == std::vector<int>(4));
}

}  // namespace
}  // namespace weir
