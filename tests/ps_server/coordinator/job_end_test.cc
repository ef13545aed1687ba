#include "ps_server/coordinator/job_end.h"

#include <catch2/catch.hpp>

namespace weir {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

TEST_CASE("The first failure waits for the store's word, until its time is over") {
  JobEnd end;
  CHECK_FALSE(end.Overdue(kStart));
  CHECK(end.Suspect(absl::InternalError("first"), kStart + absl::Seconds(5)));
  CHECK_FALSE(end.Suspect(absl::InternalError("second"), kStart));
  CHECK_FALSE(end.Overdue(kStart + absl::Seconds(4)));
  CHECK(end.Overdue(kStart + absl::Seconds(5)));
  CHECK(end.suspected() == absl::InternalError("first"));
  CHECK(end.failure().ok());
}

TEST_CASE("Callers hear that the job is done, or why it failed") {
  JobEnd end;
  CHECK(end.ForCall() == absl::UnavailableError("the job is done"));
  SECTION("for a reason that a Join must not take for a server that is away") {
    end.Fail(absl::UnavailableError("worker:1 was lost"));
    CHECK(end.ForJoin() == absl::AbortedError("worker:1 was lost"));
    CHECK(end.ForCall() == absl::UnavailableError("worker:1 was lost"));
  }
  SECTION("for another reason") {
    end.Fail(absl::FailedPreconditionError("two configs"));
    CHECK(end.ForJoin() == absl::FailedPreconditionError("two configs"));
    CHECK(end.ForCall() == absl::UnavailableError("two configs"));
  }
}

TEST_CASE("A job is drained, or ends again; each message is said once") {
  JobEnd end;
  CHECK_FALSE(end.drained());
  end.Drain("SIGTERM");
  CHECK(end.drained());
  CHECK(end.drain_reason() == "SIGTERM");
  CHECK_FALSE(end.ends_again());
  end.EndAgain();
  CHECK(end.ends_again());
  CHECK(end.SayWaiting());
  CHECK_FALSE(end.SayWaiting());
  CHECK(end.SayEnd());
  CHECK_FALSE(end.SayEnd());
}

}  // namespace
}  // namespace weir
