#include "ps_server/shard/slab_pool.h"

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"

namespace weir {
namespace {

TEST_CASE("Slabs are aligned, apart, and used again") {
  SlabPool pool(100);
  CHECK(pool.elements() == 100);
  Slab a = pool.Take(), b = pool.Take();
  CHECK(reinterpret_cast<uintptr_t>(a.get()) % 64 == 0);
  CHECK(reinterpret_cast<uintptr_t>(b.get()) % 64 == 0);
  CHECK(a.get() != b.get());
  float* const first = a.get();
  const Slab reader = a;
  a.reset();
  Slab c = pool.Take();
  CHECK(c.get() != first);  // a reader still holds it
  c.reset();
  const_cast<Slab&>(reader).reset();
  CHECK(pool.Take().get() == first);
}

TEST_CASE("A slab may outlive its pool") {
  auto pool = std::make_unique<SlabPool>(16);
  Slab slab = pool->Take();
  pool.reset();
  slab.get()[15] = 1;
  CHECK(slab.get()[15] == 1);
}

TEST_CASE("A pool of nothing, for a shard that has no blocks") {
  SlabPool pool(0);
  CHECK(pool.Take().get() != nullptr);
}

TEST_CASE("Threads take and give back at once") {
  SlabPool pool(64);
  std::vector<std::thread> threads;
  std::vector<int> torn(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        Slab slab = pool.Take();
        for (int e = 0; e < 64; ++e) slab.get()[e] = static_cast<float>(t);
        for (int e = 0; e < 64; ++e) torn[t] += slab.get()[e] != static_cast<float>(t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(torn == std::vector<int>(4));
}

}  // namespace
}  // namespace weir
