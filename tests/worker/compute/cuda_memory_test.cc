// Compiled like the emulated code: weir::cuda is the emulation's.

#include "worker/compute/cuda_memory.h"

#include <cstddef>
#include <cstring>
#include <map>

#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "tests/worker/compute/cuda_emulation/emulation.h"

namespace weir {
namespace {

using cuda_emulation::LiveObjects;

TEST_CASE("Pieces come from one chunk and join again") {
  cuda_emulation::SetMachine({});
  cuda::Arena arena(1 << 20);
  std::byte* const a = static_cast<std::byte*>(*arena.Allocate(1));
  std::byte* const b = static_cast<std::byte*>(*arena.Allocate(257));
  std::byte* const c = static_cast<std::byte*>(*arena.Allocate(0));
  CHECK(b == a + 256);
  CHECK(c == b + 512);
  CHECK(arena.allocations() == 1);
  std::byte* const rest = static_cast<std::byte*>(*arena.Allocate((1 << 20) - 4 * 256));
  CHECK(rest == c + 256);
  arena.Free(a);
  CHECK(*arena.Allocate(256) == a);
  // The best fit, not the first.
  arena.Free(b);
  arena.Free(rest);
  CHECK(*arena.Allocate(512) == b);
  arena.Free(a);
  arena.Free(c);
  arena.Free(b);
  CHECK(LiveObjects() == 0);  // an empty chunk is freed
  CHECK(arena.allocations() == 1);
}

TEST_CASE("What does not fit into a chunk has one of its own") {
  cuda_emulation::SetMachine({});
  {
    cuda::Arena arena(1 << 20);
    void* const large = *arena.Allocate(3 << 20);
    CHECK(arena.Allocate(100).ok());
    CHECK(LiveObjects() == 2);
    arena.Free(large);
    CHECK(LiveObjects() == 1);
    arena.Free(nullptr);
  }
  CHECK(LiveObjects() == 0);
}

TEST_CASE("Where no chunk fits any more, what is asked for may") {
  cuda_emulation::Machine machine;
  machine.memory_bytes = 1 << 20;
  cuda_emulation::SetMachine(machine);
  cuda::Arena arena(2 << 20);
  CHECK(arena.Allocate(1 << 19).ok());
  CHECK(arena.Allocate(1 << 20).status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(arena.Allocate(1 << 18).ok());
}

TEST_CASE("Pieces never overlap") {
  cuda_emulation::SetMachine({});
  cuda::Arena arena(1 << 14);
  RandomStream random(1, 2);
  std::map<char*, std::pair<size_t, char>> live;
  for (int i = 0; i < 3000; ++i) {
    if (live.size() < 30 || random.NextBelow(2) == 0) {
      const size_t bytes = random.NextBelow(6000);
      char* const memory = static_cast<char*>(*arena.Allocate(bytes));
      CHECK(reinterpret_cast<uintptr_t>(memory) % 256 == 0);
      const char mark = static_cast<char>(i);
      std::memset(memory, mark, bytes);
      live[memory] = {bytes, mark};
    } else {
      const auto it = std::next(live.begin(), random.NextBelow(static_cast<uint32_t>(live.size())));
      const auto [bytes, mark] = it->second;
      const bool intact = std::string(it->first, bytes) == std::string(bytes, mark);
      REQUIRE(intact);
      arena.Free(it->first);
      live.erase(it);
    }
  }
  for (const auto& [memory, value] : live) arena.Free(memory);
  CHECK(LiveObjects() == 0);
}

}  // namespace
}  // namespace weir
