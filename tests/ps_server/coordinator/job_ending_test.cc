#include "ps_server/coordinator/job_ending.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "common/protocol/job_failure.h"
#include "tests/ps_server/coordinator/checkpoints_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
using Names = std::vector<std::string>;
constexpr absl::Duration kLease = absl::Seconds(10);

// The end of a job, and the calls that it makes.
struct Fixture : CheckpointsFixture {
  explicit Fixture(uint32_t workers = 1) : ending(job, checkpoints, EndingOptions()) {
    job.workers = workers;
  }
  JobEnding::Options EndingOptions() {
    JobEnding::Options options;
    options.worker_name = [](uint32_t rank) { return absl::StrCat("worker:", rank); };
    options.confirm = [this](std::function<void(const absl::Status&)> done) { confirm = std::move(done); };
    options.all_installed = [this] { return installed; };
    options.saved = [this] { ++saves; };
    options.settled = [this] { ++settled; };
    return options;
  }
  JobEnding::Leave Leave() {
    return [this](const absl::StatusOr<v1::LeaveReply>& reply) { leaves.push_back(reply.status()); };
  }

  bool installed = true;
  std::function<void(const absl::Status&)> confirm;
  int saves = 0, settled = 0;
  std::vector<absl::Status> leaves;
  JobEnding ending;
};

// ---- why the job ends

TEST_CASE("The first failure waits for the store's word, until its time is over") {
  Fixture f;
  f.ending.FailUnlessReplaced(absl::InternalError("first"));
  f.ending.FailUnlessReplaced(absl::InternalError("second"));
  f.clock.Advance(absl::Seconds(4));
  f.ending.Tick();
  CHECK(f.failures.empty());
  SECTION("the store is silent") {
    f.clock.Advance(absl::Seconds(1));
    f.ending.Tick();
    f.confirm(absl::OkStatus());
  }
  SECTION("the job is this coordinator's") { f.confirm(absl::OkStatus()); }
  SECTION("the store fails") { f.confirm(absl::UnavailableError("no disk")); }
  SECTION("another coordinator has the job") {
    f.confirm(absl::AbortedError("ps:0 of b"));
    CHECK(f.replaced == "ps:0 of b");
    CHECK(f.failures.empty());
    return;
  }
  CHECK(f.failures == std::vector<absl::Status>{absl::InternalError("first")});
}

TEST_CASE("Callers hear that the job is done, or why it failed") {
  Fixture f;
  CHECK(f.ending.ForCall() == absl::UnavailableError("the job is done"));
  SECTION("for a reason that a Join must not take for a server that is away") {
    f.ending.End(absl::UnavailableError("worker:1 was lost"));
    CHECK(f.ending.ForJoin() == absl::AbortedError("worker:1 was lost"));
    CHECK(f.ending.ForCall() == absl::UnavailableError("worker:1 was lost"));
  }
  SECTION("for another reason") {
    f.ending.End(absl::FailedPreconditionError("two configs"));
    CHECK(f.ending.ForJoin() == absl::FailedPreconditionError("two configs"));
    CHECK(f.ending.ForCall() == absl::UnavailableError("two configs"));
  }
}

// ---- whether the end is saved

TEST_CASE("Workers wait until the end is saved") {
  Fixture f;
  f.ending.Wait(f.Leave());
  f.ending.Wait(f.Leave());
  f.ending.Save(64);
  CHECK_FALSE(f.ending.saved());
  CHECK(f.leaves.empty());
  f.Write();
  CHECK(f.ending.saved());
  CHECK(f.saves == 1);
  CHECK(f.leaves == std::vector<absl::Status>(2));
  f.clock.Advance(absl::Seconds(5));
  f.ending.TickSave();
  CHECK(f.disk->commits == 1);
}

TEST_CASE("A save is tried again a second after the last try, until its time is over") {
  Fixture f;
  f.disk->begin_status = absl::ResourceExhaustedError("no space");
  f.ending.Save(64);
  CHECK_THAT(f.ending.save_trouble(), Contains("no space"));
  f.disk->begin_status = absl::ResourceExhaustedError("a quota");
  f.clock.Advance(absl::Milliseconds(999));
  f.ending.TickSave();
  CHECK_THAT(f.ending.save_trouble(), Contains("no space"));
  f.clock.Advance(absl::Milliseconds(1));
  f.ending.TickSave();
  CHECK_THAT(f.ending.save_trouble(), Contains("a quota"));
  SECTION("there is room again") {
    f.disk->begin_status = absl::OkStatus();
    f.clock.Advance(absl::Seconds(1));
    f.ending.TickSave();
    f.Write();
    CHECK(f.ending.saved());
    CHECK(f.ending.save_trouble().empty());
  }
  SECTION("a shard is away, which is no trouble of the disk") {
    f.installed = false;
    f.clock.Advance(absl::Seconds(1));
    f.ending.TickSave();
    CHECK(f.ending.save_trouble().empty());
  }
  SECTION("the time counts from the first failure") {
    f.clock.Advance(absl::Seconds(29));
    f.ending.TickSave();
    REQUIRE(f.failures.size() == 1);
    CHECK(KindOf(f.failures[0]) == v1::FAILURE_RESOURCE);
    CHECK_THAT(std::string(f.failures[0].message()),
               Contains("save_wait_seconds = 30") && Contains("a quota"));
  }
}

TEST_CASE("A job that goes back refuses the workers that wait, and is to be saved again") {
  Fixture f;
  f.ending.Save(64);
  f.ending.Wait(f.Leave());
  f.ending.OnMore(absl::AbortedError("back to step 3"));
  CHECK(f.leaves == std::vector<absl::Status>{absl::AbortedError("back to step 3")});
  f.Write();
  CHECK_FALSE(f.ending.saved());
  f.ending.EndAgain();
  CHECK(f.ending.saved());
  f.ending.OnMore(absl::AbortedError("back"));
  CHECK_FALSE(f.ending.saved());
}

// ---- workers that may still come

TEST_CASE("Workers that were never there may come for a lease from the start") {
  Fixture f(3);
  CHECK(f.ending.MayCome().empty());
  f.ending.OnStart();
  f.ending.OnTold(0, 70);
  f.ending.OnGaveUp(2);
  f.clock.Advance(absl::Seconds(9));
  CHECK(f.ending.MayCome() == Names{"worker:1 (not there yet)"});
  CHECK(f.ending.AwaitsWorkers());
  f.clock.Advance(absl::Seconds(1));
  CHECK(f.ending.MayCome().empty());
  CHECK_FALSE(f.ending.AwaitsWorkers());
}

TEST_CASE("A worker that fell silent may come for a lease from when the end was saved, or it was lost") {
  Fixture f;
  f.ending.OnTold(0, 70);
  f.ending.OnLost(0, "worker:0", /*disconnected=*/false, {});
  f.clock.Advance(absl::Seconds(5));
  SECTION("it has not come") {
    const bool saved = GENERATE(false, true);
    if (saved) {
      f.ending.Save(64);
      f.Write();
    }
    f.clock.Advance(absl::Seconds(4));
    CHECK(f.ending.MayCome() == Names{"worker:0 (lost before)"});
    f.clock.Advance(absl::Seconds(2));
    CHECK(f.ending.MayCome().empty() != saved);
    f.clock.Advance(absl::Seconds(5));
  }
  SECTION("it has heard of the end") { f.ending.OnTold(0, 70); }
  SECTION("it is in again") { f.ending.OnMember(0); }
  CHECK(f.ending.MayCome().empty());
}

TEST_CASE("A worker whose connection broke comes back soon, or never") {
  Fixture f;
  f.ending.OnLost(0, "worker:0", /*disconnected=*/true, {});
  f.clock.Advance(absl::Milliseconds(999));
  CHECK(f.ending.MayCome() == Names{"worker:0 (lost before)"});
  f.clock.Advance(absl::Milliseconds(1));
  CHECK(f.ending.MayCome().empty());
}

TEST_CASE("Who waited already when a worker was lost is another process, and does not hear in its stead") {
  Fixture f;
  const bool disconnected = GENERATE(false, true);
  f.ending.OnLost(0, "worker:0", disconnected, {71, 72});
  f.ending.OnTold(0, 71);
  f.ending.OnTold(0, 72);
  CHECK(f.ending.MayCome() == Names{"worker:0 (lost before)"});
  SECTION("its time is over") { f.clock.Advance(kLease); }
  SECTION("the lost one comes") { f.ending.OnTold(0, 73); }
  SECTION("another one was let in, and is awaited itself") { f.ending.OnMember(0); }
  CHECK(f.ending.MayCome().empty());
}

TEST_CASE("A process whose connection broke while it waited to join comes back soon, or never") {
  Fixture f;
  SECTION("a new one") { f.ending.OnJoinBroken(0, "worker:0"); }
  SECTION("after a member that is dead for long") {
    f.ending.OnLost(0, "worker:0", /*disconnected=*/true, {});
    f.clock.Advance(absl::Seconds(5));
    f.ending.OnJoinBroken(0, "worker:0");
  }
  f.clock.Advance(absl::Milliseconds(999));
  CHECK(f.ending.MayCome() == Names{"worker:0 (lost before)"});
  const bool comes = GENERATE(false, true);
  comes ? f.ending.OnTold(0, 70) : f.clock.Advance(absl::Milliseconds(1));
  CHECK(f.ending.MayCome().empty());
}

TEST_CASE("A broken Join makes no wait shorter") {
  Fixture f;
  SECTION("for a silent worker") {
    f.ending.OnLost(0, "worker:0", /*disconnected=*/false, {});
    f.ending.OnJoinBroken(0, "worker:0");
    f.clock.Advance(absl::Seconds(9));
    CHECK(f.ending.MayCome() == Names{"worker:0 (lost before)"});
  }
  SECTION("for a worker that was never there") {
    f.ending.OnJoinBroken(0, "worker:0");
    f.ending.OnStart();
    CHECK(f.ending.MayCome() == Names{"worker:0 (lost before)"});
    f.clock.Advance(absl::Seconds(9));
    CHECK(f.ending.MayCome() == Names{"worker:0 (not there yet)"});
  }
  f.clock.Advance(absl::Seconds(1));
  CHECK(f.ending.MayCome().empty());
}

TEST_CASE("When the job continues after all, workers that were told of its end may come again") {
  Fixture f;
  f.ending.OnStart();
  f.ending.OnTold(0, 70);
  CHECK(f.ending.MayCome().empty());
  f.ending.OnMore(absl::AbortedError("back"));
  CHECK(f.ending.MayCome() == Names{"worker:0 (not there yet)"});
}

TEST_CASE("A rank that gave up counts until a process of it is in again") {
  Fixture f(2);
  f.ending.OnGaveUp(1);
  CHECK(f.ending.gave_up() == std::set<uint32_t>{1});
  f.ending.OnMember(1);
  CHECK(f.ending.gave_up().empty());
}

// ---- processes that have yet to hear that the job is over

TEST_CASE("A failure is over when all have left, after two seconds, or when nobody is waited for") {
  Fixture f(2);
  f.ending.End(absl::InternalError("a failure"));
  f.ending.Await({}, JobEnding::kTellFailure, {7, 8});
  f.ending.OnLeft(7);
  f.ending.OnLeft(7);
  f.ending.OnLeft(9);
  f.clock.Advance(absl::Milliseconds(1999));
  f.ending.Tick();
  CHECK(f.settled == 0);
  SECTION("all have left") { f.ending.OnLeft(8); }
  SECTION("two seconds") {
    f.clock.Advance(absl::Milliseconds(1));
    f.ending.Tick();
  }
  SECTION("nobody is waited for") { f.ending.WaitNoLonger(); }
  CHECK(f.settled == 1);
  f.ending.Tick();
  CHECK(f.settled == 1);
}

TEST_CASE("Servers are waited for until they know, as long as is said, beside the members") {
  Fixture f;
  f.ending.End(absl::OkStatus());
  SECTION("as long as is said") {
    f.ending.Await({0, 3}, absl::Seconds(5), {});
    f.ending.OnServerKnows(0);
    CHECK(f.ending.awaited_servers() == std::set<uint32_t>{3});
    f.clock.Advance(absl::Milliseconds(4999));
    f.ending.Tick();
    CHECK(f.settled == 0);
    f.clock.Advance(absl::Milliseconds(1));
    f.ending.Tick();
  }
  SECTION("for two seconds once the link has broken") {
    f.ending.Await({0, 3}, absl::Seconds(5), {});
    f.ending.OnServerKnows(0);
    CHECK_FALSE(f.ending.OnServerBroke(0));
    CHECK(f.ending.OnServerBroke(3));
    f.clock.Advance(absl::Milliseconds(1999));
    f.ending.Tick();
    CHECK(f.settled == 0);
    f.clock.Advance(absl::Milliseconds(1));
    f.ending.Tick();
  }
  SECTION("beside the members") {
    f.ending.Await({3}, absl::Seconds(5), {7});
    f.ending.OnServerKnows(3);
    CHECK(f.settled == 0);
    f.ending.OnLeft(7);
  }
  CHECK(f.settled == 1);
}

}  // namespace
}  // namespace weir
