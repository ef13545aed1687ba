#include "ps_server/coordinator/job_numbers.h"

#include <catch2/catch.hpp>
#include <vector>

namespace weir {
namespace {

TEST_CASE("Without a store every number is free") {
  JobNumbers numbers;
  CHECK(numbers.Has(uint64_t{1} << 40));
  CHECK(numbers.NextEpoch() == 1);
  CHECK(numbers.NextIncarnation() == 1);
  CHECK(numbers.epoch() == 1);
}

TEST_CASE("Numbers are used only once they are set aside") {
  struct Asked {
    JobStore::Numbers up_to;
    JobNumbers::Done done;
  };
  std::vector<Asked> asked;
  JobStore::Opened opened;
  opened.used = {10, 20};
  opened.reserved = {12, 22};
  JobNumbers numbers(opened, [&](const JobStore::Numbers& up_to, JobNumbers::Done done) {
    asked.push_back({up_to, std::move(done)});
  });
  CHECK(numbers.Has(2));
  CHECK_FALSE(numbers.Has(3));
  CHECK(numbers.NextEpoch() == 11);
  CHECK_FALSE(numbers.Has(2));

  std::vector<absl::Status> answers;
  numbers.Ask(5, [&](const absl::Status& status, bool) { answers.push_back(status); });
  REQUIRE(asked.size() == 1);
  CHECK(numbers.asking());
  CHECK_FALSE(numbers.Has(2));
  // A second call does nothing while the first is under way.
  numbers.Ask(5, [&](const absl::Status& status, bool) { answers.push_back(status); });
  REQUIRE(asked.size() == 1);
  SECTION("they are") {
    asked[0].done(absl::OkStatus());
    CHECK(numbers.Has(1000));
    CHECK(numbers.reserved().epoch == asked[0].up_to.epoch);
    CHECK(numbers.reserved().incarnation == asked[0].up_to.incarnation);
  }
  SECTION("they are not") {
    asked[0].done(absl::AbortedError("another ps:0"));
    CHECK_FALSE(numbers.Has(2));
    CHECK(answers == std::vector<absl::Status>{absl::AbortedError("another ps:0")});
    numbers.Ask(5, [](const absl::Status&, bool) {});
    CHECK(asked.size() == 2);
  }
  CHECK(answers.size() == 1);
}

TEST_CASE("An answer says whether something has waited for it") {
  std::vector<JobNumbers::Done> asked;
  JobNumbers numbers({}, [&](const JobStore::Numbers&, JobNumbers::Done done) { asked.push_back(done); });
  std::vector<bool> needed;
  const auto answer = [&](const absl::Status&, bool was_needed) { needed.push_back(was_needed); };
  numbers.Ask(1, answer);
  asked[0](absl::UnavailableError("the disk is full"));
  CHECK_FALSE(numbers.Need(1));
  CHECK(numbers.needed());
  numbers.Ask(1, answer);
  asked[1](absl::OkStatus());
  CHECK_FALSE(numbers.needed());
  CHECK(numbers.Need(1));
  CHECK_FALSE(numbers.needed());
  CHECK(needed == std::vector<bool>{false, true});
}

TEST_CASE("Numbers are asked for in advance when few are left, but not at once after a failure") {
  JobNumbers numbers({},
                     [](const JobStore::Numbers&, const JobNumbers::Done& done) { done(absl::OkStatus()); });
  const absl::Time start = absl::FromUnixSeconds(1000);
  CHECK(numbers.Due(300, start));
  numbers.AskLater(start + absl::Seconds(10));
  CHECK_FALSE(numbers.Due(300, start + absl::Seconds(9)));
  CHECK(numbers.Due(300, start + absl::Seconds(10)));
  numbers.Ask(300, [](const absl::Status&, bool) {});
  CHECK_FALSE(numbers.Due(300, start + absl::Seconds(10)));
}

}  // namespace
}  // namespace weir
