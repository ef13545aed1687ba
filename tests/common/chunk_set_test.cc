#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/protocol/exchange_layout.h"

namespace weir {
namespace {

constexpr uint64_t kMost = 1 << 20;

TEST_CASE("ChunkSet: chunks come in any order, until all values are there") {
  ChunkSet set(10, 4);
  CHECK(!set.whole());
  CHECK(set.Add(8, 2 * 4, 4, kMost).ok());
  CHECK(set.Add(0, 8 * 4, 4, kMost).ok());
  CHECK(set.whole());

  ChunkSet of_two_bytes(10, 4);
  CHECK(of_two_bytes.Add(0, 10 * 2, 2, kMost).ok());
  CHECK(of_two_bytes.whole());
}

TEST_CASE("ChunkSet: without values it is whole, and takes nothing") {
  ChunkSet none(0, 4);
  CHECK(none.whole());
  CHECK(!none.Add(0, 4, 4, kMost).ok());
  CHECK(ChunkSet().whole());
}

TEST_CASE("ChunkSet: what is no chunk changes nothing") {
  struct Case {
    uint64_t first, bytes;
  };
  for (const Case& c :
       {Case{0, 0}, Case{1, 16}, Case{0, 4}, Case{0, 18}, Case{8, 4}, Case{8, 16}, Case{12, 16},
        Case{uint64_t{1} << 62, 16}, Case{4, ~uint64_t{15}}, Case{0, kMost + 16}}) {
    ChunkSet set(10, 4);
    const absl::Status status = set.Add(c.first, c.bytes, 4, kMost);
    CAPTURE(c.first, c.bytes);
    CHECK(absl::IsInvalidArgument(status));
    CHECK(absl::StrContains(
        status.message(), "which does not fit: chunks start and end at multiples of 4 elements of 4 bytes"));
    CHECK(set.Add(0, 40, 4, kMost).ok());
  }
  CHECK(!ChunkSet(1 << 20, 4).Add(0, kMost + 16, 4, kMost).ok());
}

TEST_CASE("ChunkSet: a value that came before is refused, with its chunk") {
  ChunkSet set(12, 4);
  CHECK(set.Add(4, 16, 4, kMost).ok());
  const absl::Status status = set.Add(0, 32, 4, kMost);
  CHECK(absl::IsInvalidArgument(status));
  CHECK(status.message() == "of which position 4 came before");
  CHECK(!set.Add(4, 16, 4, kMost).ok());
  CHECK(set.Add(0, 16, 4, kMost).ok());
  CHECK(set.Add(8, 16, 4, kMost).ok());
  CHECK(set.whole());
}

}  // namespace
}  // namespace weir
