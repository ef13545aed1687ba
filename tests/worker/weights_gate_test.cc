#include <thread>

#include "catch2/catch.hpp"
#include "worker/trainer.h"

namespace weir {
namespace {

absl::Status Await(WeightsGate& gate, size_t first, size_t end) {
  return gate.Await(first, end, [](absl::FunctionRef<bool()>, absl::FunctionRef<void()> sleep) { sleep(); });
}

// A waiting call returns in whatever order the weights come.
TEST_CASE("A layer's weights are waited for, and no others") {
  WeightsGate gate(4);
  int seen = 0;
  absl::Status first, second;
  std::thread waiter([&] {
    first = Await(gate, 0, 2);
    seen = 1;
    gate.Arrived(3);  // while no other thread would call it
    second = Await(gate, 2, 4);
    seen = 2;
  });
  gate.Arrived(1);
  gate.Arrived(2);
  gate.Arrived(0);
  waiter.join();
  CHECK(first.ok());
  CHECK(second.ok());
  CHECK(seen == 2);
}

TEST_CASE("The end of a pull ends all waits") {
  const absl::Status how = GENERATE(absl::OkStatus(), absl::AbortedError("fenced"));
  WeightsGate gate(3);
  gate.Arrived(0);
  CHECK(Await(gate, 0, 1).ok());
  absl::Status got = absl::UnknownError("not yet");
  std::thread waiter([&] { got = Await(gate, 0, 3); });
  gate.Ended(how);
  gate.Ended(absl::InternalError("a second end does not count"));
  waiter.join();
  CHECK(got == how);
  CHECK(Await(gate, 2, 3) == how);
}

TEST_CASE("Whoever waits may do some work meanwhile, until the weights are there") {
  WeightsGate gate(2);
  int turns = 0;
  const absl::Status got =
      gate.Await(0, 2, [&](absl::FunctionRef<bool()> ready, absl::FunctionRef<void()> sleep) {
        CHECK_FALSE(ready());
        while (!ready()) gate.Arrived(static_cast<size_t>(turns++));
        sleep();
      });
  CHECK(got.ok());
  CHECK(turns == 2);
  // There is nothing to wait for.
  CHECK(gate.Await(0, 2, [](auto, auto) { FAIL("waited"); }).ok());
}

}  // namespace
}  // namespace weir
