#include "catch2/catch.hpp"
#include "common/shared_memory/doorbell.h"

namespace weir {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

TEST_CASE("A thread looks for longer while that would have found its work") {
  AdaptiveSpin spin;
  CHECK(spin.budget() == AdaptiveSpin::Duration(0));
  for (const int expected : {5, 10, 20, 40}) {
    spin.OnWaited(microseconds(45));
    CHECK(spin.budget() == microseconds(expected));
  }
  spin.OnWaited(microseconds(45));
  CHECK(spin.budget() == AdaptiveSpin::kMost);
  // Found while it looked.
  spin.OnWaited(microseconds(12));
  CHECK(spin.budget() == AdaptiveSpin::kMost);
}

TEST_CASE("A thread that waits for long does not look, nor does one whose core others want") {
  AdaptiveSpin spin;
  for (int i = 0; i < 10; ++i) spin.OnWaited(microseconds(45));
  SECTION("long waits") {
    spin.OnWaited(milliseconds(1));
    CHECK(spin.budget() == AdaptiveSpin::Duration(0));
    spin.OnWaited(milliseconds(1));
    CHECK(spin.budget() == AdaptiveSpin::Duration(0));
  }
  SECTION("the core is wanted: for so many waits, and for longer each time") {
    for (const int skipped : {AdaptiveSpin::kSkipLeast, 2 * AdaptiveSpin::kSkipLeast}) {
      spin.OnCoreWanted();
      for (int i = 0; i < skipped; ++i) {
        CHECK(spin.budget() == AdaptiveSpin::Duration(0));
        spin.OnWaited(microseconds(45));
      }
      CHECK(spin.budget() == AdaptiveSpin::kMost);
    }
  }
}

TEST_CASE("A core that is wanted now and then only is soon looked on again") {
  AdaptiveSpin spin;
  for (int i = 0; i < 10; ++i) spin.OnWaited(microseconds(45));
  for (int i = 0; i < 20; ++i) {
    spin.OnCoreWanted();
    int skipped = 0;
    for (; spin.budget() == AdaptiveSpin::Duration(0); ++skipped) spin.OnWaited(microseconds(45));
    CHECK(skipped == AdaptiveSpin::kSkipLeast);
    for (int found = 0; found < AdaptiveSpin::kCalm; ++found) spin.OnWaited(microseconds(12));
  }
  // Without a calm the pauses grow up to a limit.
  int skipped = 0;
  for (int i = 0; i < 20; ++i) {
    spin.OnCoreWanted();
    for (skipped = 0; spin.budget() == AdaptiveSpin::Duration(0); ++skipped) spin.OnWaited(microseconds(45));
  }
  CHECK(skipped == AdaptiveSpin::kSkipMost);
}

}  // namespace
}  // namespace weir
