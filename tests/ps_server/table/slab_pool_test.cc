#include <sys/mman.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ps_server/table/record_map.h"

namespace weir {
namespace {

constexpr size_t kPage = 4096;

// The share of the pages of [memory, memory + bytes) that the system has given. Whole pages.
double Resident(const char* memory, size_t bytes) {
  std::vector<unsigned char> pages(bytes / kPage);
  REQUIRE(mincore(const_cast<char*>(memory), bytes, pages.data()) == 0);
  const auto given = std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; });
  return static_cast<double>(given) / static_cast<double>(pages.size());
}

TEST_CASE("no page of a slab after the first has to be waited for") {
  SlabPool pool;
  constexpr size_t kPiece = SlabPool::kSlab / 4;
  for (int piece = 0; piece < 12; ++piece) {
    char* const memory = pool.Take(kPiece);
    CHECK(reinterpret_cast<uintptr_t>(memory) % kPage == 0);
    if (piece >= 4) CHECK(Resident(memory, kPiece) == 1);
    std::memset(memory, piece, kPiece);
  }
}

TEST_CASE("a small pool takes only what it writes to") {
  SlabPool pool;
  // More than a huge page away from what is written to.
  char* const memory = pool.Take(SlabPool::kSlab / 4);
  std::memset(memory, 1, kPage);
  CHECK(Resident(memory + SlabPool::kSlab / 8, SlabPool::kSlab / 8) == 0);
}

TEST_CASE("a piece may be larger than a slab, and pieces do not overlap") {
  SlabPool pool;
  struct Piece {
    char* at;
    size_t bytes;
  };
  std::vector<Piece> pieces;
  for (size_t bytes :
       {size_t{100}, SlabPool::kSlab / 2, SlabPool::kSlab + 1, size_t{64}, SlabPool::kSlab / 2}) {
    pieces.push_back({pool.Take(bytes), bytes});
    std::memset(pieces.back().at, static_cast<int>(pieces.size()), bytes);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto value = static_cast<char>(i + 1);
    CHECK(pieces[i].at[0] == value);
    CHECK(pieces[i].at[pieces[i].bytes - 1] == value);
  }
}

}  // namespace
}  // namespace weir
