#include "ps_server/shard/calls/push_arrival.h"

#include "catch2/catch.hpp"

namespace weir {
namespace {

TEST_CASE("Pushes that are gone without a decision are forgotten when their worker's next push begins") {
  PushArrivals arrivals;
  auto other = arrivals.Add({6, 0, 0});
  auto late = arrivals.Add({7, 0, 3});
  for (uint64_t step = 1; step < 100; ++step) {
    // The previous step was committed without the late part, whose second copy is still arriving.
    auto again = arrivals.Add({7, step - 1, 3});
    late = arrivals.Add({7, step, 3});
    CHECK(arrivals.size() == 3);
    again = nullptr;
  }
  late = nullptr;
  CHECK(arrivals.Add({6, 0, 0}) != nullptr);
  CHECK(arrivals.Add({7, 100, 3}) != nullptr);
  CHECK(arrivals.size() == 2);
}

TEST_CASE("Two copies of a push may arrive at once, and their rows count once") {
  PushArrivals arrivals;
  auto first = arrivals.Add({1, 5, 2}, 100);
  auto second = arrivals.Add({1, 5, 2}, 100);
  CHECK(arrivals.Add({1, 5, 2}, 100) == nullptr);
  CHECK(arrivals.RowBytesOf(5) == std::map<uint32_t, uint64_t>{{2, 100}});
  // Pushes of other keys do not count.
  CHECK(arrivals.Add({1, 6, 2}) != nullptr);
  first = nullptr;
  first = arrivals.Add({1, 5, 2}, 100);
  CHECK(first != nullptr);
  first = second = nullptr;
  CHECK(arrivals.RowBytesOf(5).empty());
}

}  // namespace
}  // namespace weir
