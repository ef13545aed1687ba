#include <catch2/catch.hpp>
#include <utility>
#include <vector>

#include "common/protocol/job_failure.h"
#include "ps_server/coordinator/checkpoints/job_store.h"
#include "tests/ps_server/coordinator/checkpoints_fixture.h"

namespace weir {
namespace {

using Catch::Contains;

// Numbers of a store that answers on the test's command.
struct Fixture : JobFixture {
  explicit Fixture(const JobStore::Opened& opened = {})
      : numbers(job, opened,
                {[this](const JobStore::Numbers& up_to, JobNumbers::Done done) {
                   ++asks;
                   asked = up_to;
                   answer = std::move(done);
                 },
                 [this](bool needed) { reserved.push_back(needed); }}) {}

  int asks = 0;
  JobStore::Numbers asked;
  JobNumbers::Done answer;
  std::vector<bool> reserved;
  JobNumbers numbers;
};

JobStore::Opened TwoLeft() {
  JobStore::Opened opened;
  opened.used = {10, 20};
  opened.reserved = {12, 22};
  return opened;
}

const absl::Status kNoRoom = absl::ResourceExhaustedError("the disk is full");

TEST_CASE("Without a store every number is free") {
  const JobFixture f;
  JobNumbers numbers(f.job, {}, {});
  CHECK(numbers.Need(uint64_t{1} << 40));
  CHECK(numbers.NextEpoch() == 1);
  CHECK(numbers.NextIncarnation() == 1);
  CHECK(numbers.epoch() == 1);
}

TEST_CASE("Numbers are used only once they are set aside") {
  Fixture f(TwoLeft());
  CHECK(f.numbers.Need(2));
  CHECK(f.asks == 0);
  CHECK(f.numbers.NextEpoch() == 11);
  CHECK_FALSE(f.numbers.Need(2));
  CHECK(f.numbers.needed());
  // While the first call is under way, a second one does nothing.
  CHECK_FALSE(f.numbers.Need(5));
  REQUIRE(f.asks == 1);
  SECTION("they are") {
    f.answer(absl::OkStatus());
    CHECK(f.numbers.Need(1000));
    CHECK_FALSE(f.numbers.needed());
    CHECK(f.numbers.reserved().epoch == f.asked.epoch);
    CHECK(f.numbers.reserved().incarnation == f.asked.incarnation);
    CHECK(f.reserved == std::vector<bool>{true});
  }
  SECTION("another coordinator has the job") {
    f.answer(absl::AbortedError("another ps:0"));
    CHECK(f.replaced == "another ps:0");
    CHECK_FALSE(f.numbers.Need(2));
    CHECK(f.asks == 2);
  }
  SECTION("the job is over") {
    f.over = true;
    f.answer(absl::OkStatus());
    CHECK(f.reserved.empty());
  }
}

TEST_CASE("While there is no room, numbers that are needed are asked for again, until their time is over") {
  Fixture f(TwoLeft());
  CHECK_FALSE(f.numbers.Need(3));
  f.answer(kNoRoom);
  CHECK(f.numbers.needed());
  f.clock.Advance(absl::Seconds(1));
  f.numbers.Tick();
  REQUIRE(f.asks == 2);
  SECTION("there is room") {
    f.answer(absl::OkStatus());
    CHECK(f.reserved == std::vector<bool>{true});
    CHECK_FALSE(f.numbers.needed());
  }
  SECTION("there is none") {
    f.clock.Advance(absl::Seconds(29));
    f.answer(kNoRoom);
    REQUIRE(f.failures.size() == 1);
    CHECK(KindOf(f.failures[0]) == v1::FAILURE_RESOURCE);
    CHECK_THAT(std::string(f.failures[0].message()), Contains("save_wait_seconds = 30"));
  }
  SECTION("the failure is one that does not pass") {
    f.answer(absl::PermissionDeniedError("not allowed"));
    REQUIRE(f.failures.size() == 1);
    CHECK(KindOf(f.failures[0]) == v1::FAILURE_LOST_PEER);
  }
}

TEST_CASE("Numbers are asked for in advance when few are left, but not at once after a failure") {
  Fixture f;
  f.numbers.Tick();
  REQUIRE(f.asks == 1);
  f.answer(kNoRoom);
  CHECK_FALSE(f.numbers.needed());
  f.clock.Advance(absl::Seconds(9));
  f.numbers.Tick();
  CHECK(f.asks == 1);
  f.clock.Advance(absl::Seconds(1));
  f.numbers.Tick();
  REQUIRE(f.asks == 2);
  f.answer(absl::OkStatus());
  CHECK(f.reserved == std::vector<bool>{false});
  f.clock.Advance(absl::Seconds(60));
  f.numbers.Tick();
  CHECK(f.asks == 2);
}

}  // namespace
}  // namespace weir
