#include "ps_server/coordinator/last_save.h"

#include <catch2/catch.hpp>

namespace weir {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

// Collects the answers of waiting workers.
struct Leaves {
  LastSave::Leave Add() {
    return [this](absl::StatusOr<v1::LeaveReply> reply) { answers.push_back(reply.status()); };
  }
  std::vector<absl::Status> answers;
};

TEST_CASE("Workers wait until the end is saved") {
  LastSave save;
  Leaves leaves;
  save.Wait(leaves.Add());
  save.Wait(leaves.Add());
  CHECK_FALSE(save.saved());
  CHECK(leaves.answers.empty());
  save.OnSaved(kStart);
  CHECK(save.saved());
  CHECK(save.saved_at() == kStart);
  CHECK(leaves.answers == std::vector<absl::Status>(2));
}

TEST_CASE("A save is tried again a second after the last try, and not once it has worked") {
  LastSave save;
  CHECK(save.Due(kStart));
  save.OnTry(kStart);
  CHECK_FALSE(save.Due(kStart + absl::Milliseconds(999)));
  CHECK(save.Due(kStart + absl::Seconds(1)));
  save.OnSaved(kStart);
  CHECK_FALSE(save.Due(kStart + absl::Seconds(5)));
}

TEST_CASE("Trouble counts from its beginning, and tells its newest reason") {
  LastSave save;
  CHECK_FALSE(save.trouble().has_value());
  save.OnFailed(kStart, "no space");
  save.OnFailed(kStart + absl::Seconds(3), "a quota");
  REQUIRE(save.trouble().has_value());
  CHECK(save.trouble()->since == kStart);
  CHECK(save.trouble()->why == "a quota");
  SECTION("until it is over") { save.ForgetTrouble(); }
  SECTION("until it is saved") { save.OnSaved(kStart + absl::Seconds(4)); }
  CHECK_FALSE(save.trouble().has_value());
}

TEST_CASE("A job that goes back refuses the workers that wait, and is to be saved again") {
  LastSave save;
  save.SavedBefore();
  CHECK(save.saved());
  Leaves leaves;
  save.Wait(leaves.Add());
  save.OnMore(absl::AbortedError("back to step 3"));
  CHECK_FALSE(save.saved());
  CHECK(leaves.answers == std::vector<absl::Status>{absl::AbortedError("back to step 3")});
}

}  // namespace
}  // namespace weir
