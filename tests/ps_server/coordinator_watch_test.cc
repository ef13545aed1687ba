#include "ps_server/process/coordinator_watch.h"

#include <catch2/catch.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/protocol/job_failure.h"
#include "tests/common/task_queue.h"

namespace weir {
namespace {

using Catch::Matchers::Contains;

constexpr absl::Duration kTick = absl::Milliseconds(25);
constexpr absl::Duration kStart = absl::Seconds(30);
constexpr absl::Duration kLease = absl::Seconds(2);
constexpr absl::Duration kWait = absl::Seconds(5);

// A server with the watch, and a ps:0 that attaches, speaks and is lost when the test says so.
class Watched {
 public:
  explicit Watched(bool saved, const std::string& address = "10.0.0.1:2222") {
    CoordinatorWatch::Options options;
    options.config.mutable_cluster()->set_start_seconds(absl::ToDoubleSeconds(kStart));
    options.config.mutable_cluster()->set_lease_seconds(absl::ToDoubleSeconds(kLease));
    options.config.mutable_cluster()->set_server_wait_seconds(absl::ToDoubleSeconds(kWait));
    if (saved) options.config.mutable_checkpoint()->set_directory("/runs/7");
    options.coordinator_address = address;
    options.clock = &clock;
    options.presence = [this] { return ps0; };
    options.background = [this](const std::function<void()>& work) { background.Post(work); };
    options.is_done = [this] {
      ++looks;
      return done;
    };
    options.probe = [this] {
      ++probes;
      return cause;
    };
    options.drop_silent = [this](absl::Duration limit) { dropped.push_back(limit); };
    options.end = [this](const absl::Status& failure) {
      if (!end.has_value()) end = failure;
    };
    options.complain = [this](const std::string& what) { complaints.push_back(what); };
    watch.emplace(std::move(options));
  }

  void Attach() {
    ps0.attached = true;
    ps0.last_heard = clock.Now();
  }
  void Lose() { ps0.attached = false; }

  // Work in the background is over before the next tick, unless it hangs.
  void Tick() {
    clock.Advance(kTick);
    watch->Tick();
    if (!hangs) background.Run();
  }
  void Pass(absl::Duration time) {
    const absl::Time until = clock.Now() + time;
    while (clock.Now() < until) Tick();
  }
  // How long the server waits for ps:0 from now on until it ends.
  absl::Duration UntilEnd() {
    const absl::Time from = clock.Now();
    while (!end.has_value() && clock.Now() - from < absl::Hours(1)) Tick();
    return clock.Now() - from;
  }
  void NoAnswer() {
    watch->OnNoAnswer();
    if (!hangs) background.Run();
  }

  std::string failure() const { return std::string(end->message()); }

  ManualClock clock;
  CoordinatorWatch::Presence ps0{std::nullopt, false, "ps:0 (coordinator) at 10.0.0.9:1"};
  TaskQueue background;
  bool hangs = false;  // what is in the background
  bool done = false;   // the job
  absl::Status cause;  // what a probe finds
  int looks = 0, probes = 0;
  std::vector<absl::Duration> dropped;
  std::optional<absl::Status> end;
  std::vector<std::string> complaints;
  std::optional<CoordinatorWatch> watch;
};

// ---- the start

TEST_CASE("ps:0 that never attaches is given up after cluster.start_seconds, and not before") {
  const bool saved = GENERATE(false, true);
  Watched server(saved);
  server.Pass(kStart);
  CHECK_FALSE(server.end.has_value());
  server.Tick();
  REQUIRE(server.end.has_value());
  CHECK(KindOf(*server.end) == v1::FAILURE_LOST_PEER);
  CHECK(server.failure() == "ps:0 (coordinator) did not attach within 30s");
}

TEST_CASE("a server that starts when the job is done finds that out after cluster.server_wait_seconds") {
  Watched server(/*saved=*/true);
  server.done = true;
  server.Pass(kWait);
  CHECK(server.looks == 0);  // ps:0 may be on its way
  CHECK(server.UntilEnd() == kTick);
  CHECK(server.end->ok());
  CHECK(server.looks == 1);
}

TEST_CASE("a server that waits for the start looks once a second whether the job is done") {
  Watched server(/*saved=*/true);
  server.Pass(kWait);
  server.Pass(absl::Seconds(10));
  CHECK(server.looks == 10);
  server.done = true;
  CHECK(server.UntilEnd() <= absl::Milliseconds(1050));
  CHECK(server.end->ok());
}

// ---- an attached ps:0

TEST_CASE("ps:0 that is attached and heard of is never given up") {
  Watched server(/*saved=*/GENERATE(false, true));
  for (int i = 0; i < 100; ++i) {
    server.Attach();
    server.Pass(kLease);
  }
  CHECK_FALSE(server.end.has_value());
  CHECK(server.dropped.empty());
  CHECK(server.looks == 0);
  CHECK(server.complaints.empty());
}

TEST_CASE("without checkpoints: a silence longer than the lease ends the job") {
  Watched server(/*saved=*/false);
  server.Attach();
  server.Pass(kLease);
  CHECK_FALSE(server.end.has_value());
  CHECK(server.UntilEnd() == kTick);
  CHECK(KindOf(*server.end) == v1::FAILURE_LOST_PEER);
  CHECK(server.failure() == "ps:0 (coordinator) at 10.0.0.9:1 was lost: nothing was heard of it for 2.025s");
  CHECK(server.dropped.empty());
}

TEST_CASE("with checkpoints: after a silence longer than the lease ps:0 counts as lost, and may come back") {
  Watched server(/*saved=*/true);
  server.Attach();
  server.Pass(kLease);
  CHECK(server.dropped.empty());
  server.Tick();
  CHECK(server.dropped == std::vector<absl::Duration>{kLease});
  // However long that takes: only a ps:0 that is lost is given up.
  server.Pass(absl::Minutes(1));
  CHECK_FALSE(server.end.has_value());
  CHECK(server.looks == 0);
}

// ---- a ps:0 that is lost

TEST_CASE("ps:0 that comes back in time is not given up, and has all of that time the next time") {
  Watched server(/*saved=*/true);
  for (int i = 0; i < 3; ++i) {
    server.Attach();
    server.Lose();
    server.Pass(kWait);
    CHECK_FALSE(server.end.has_value());
    CHECK(server.looks == 0);
  }
}

TEST_CASE("lost for longer than cluster.server_wait_seconds, and the job is done: the server is, too") {
  Watched server(/*saved=*/true);
  server.done = true;
  server.Attach();
  server.Lose();
  server.Pass(kWait);
  CHECK_FALSE(server.end.has_value());
  CHECK(server.UntilEnd() == kTick);
  CHECK(server.end->ok());
}

TEST_CASE("lost for longer than cluster.server_wait_seconds, and the job is not done: it failed") {
  Watched server(/*saved=*/true);
  server.Attach();
  server.Lose();
  server.Pass(kWait);
  CHECK(server.looks == 0);
  CHECK(server.UntilEnd() == 2 * kTick);  // one for the look
  CHECK(server.looks == 1);
  CHECK(KindOf(*server.end) == v1::FAILURE_LOST_PEER);
  CHECK(server.failure() ==
        "ps:0 (coordinator) at 10.0.0.9:1 was lost, and did not come back within "
        "cluster.server_wait_seconds = 5");
}

TEST_CASE("ps:0 is not given up while it is not known whether the job is done") {
  const bool attached_before = GENERATE(false, true);
  const bool done = GENERATE(false, true);
  Watched server(/*saved=*/true);
  if (attached_before) server.Attach();
  server.Lose();
  server.hangs = true;
  server.Pass(absl::Minutes(10));
  CHECK_FALSE(server.end.has_value());
  server.done = done;
  server.hangs = false;
  server.background.Run();
  CHECK(server.looks == 1);  // one at a time
  server.Tick();
  REQUIRE(server.end.has_value());
  CHECK(server.end->ok() == done);
}

TEST_CASE("ps:0 that comes back while the server looks whether the job is done is not given up") {
  Watched server(/*saved=*/true);
  server.Attach();
  server.Lose();
  server.hangs = true;
  server.Pass(absl::Minutes(1));
  server.Attach();
  server.hangs = false;
  server.Pass(kLease);
  CHECK(server.looks == 1);
  CHECK_FALSE(server.end.has_value());
}

TEST_CASE("what was found out before ps:0 came back does not count when it is lost again") {
  Watched server(/*saved=*/true);
  server.Attach();
  server.Lose();
  server.hangs = true;
  server.Pass(kWait + kTick);
  server.Attach();
  server.hangs = false;
  server.Pass(absl::Seconds(1));  // the look ends
  CHECK(server.looks == 1);
  server.done = true;
  server.Lose();
  server.UntilEnd();
  CHECK(server.looks == 2);
  CHECK(server.end->ok());
}

// ---- complaints

TEST_CASE(
    "a server without ps:0 complains every ten seconds, from ten seconds after the last attachment on") {
  Watched server(/*saved=*/true);
  server.Pass(absl::Seconds(10) - kTick);
  CHECK(server.complaints.empty());
  server.Tick();
  REQUIRE(server.complaints.size() == 1);
  CHECK(server.complaints[0] ==
        "waits for ps:0 (coordinator) at 10.0.0.1:2222, of which nothing was heard for 10s");
  server.Pass(absl::Seconds(10) - kTick);
  CHECK(server.complaints.size() == 1);
  server.Tick();
  REQUIRE(server.complaints.size() == 2);
  CHECK_THAT(server.complaints[1], Contains("nothing was heard for 20s"));
  // The look at the end of the job, which hangs, does not silence it.
  server.hangs = true;
  server.Attach();
  server.Pass(absl::Seconds(1));
  server.Lose();
  server.Pass(absl::Seconds(10) - kTick);
  CHECK(server.complaints.size() == 2);
  server.Tick();
  REQUIRE(server.complaints.size() == 3);
  CHECK_THAT(server.complaints[2], Contains("nothing was heard for 11s"));
  CHECK_FALSE(server.end.has_value());
}

TEST_CASE("a ps:0 that answers is not called silent, although it has not attached") {
  Watched server(/*saved=*/true);
  server.watch->OnAnswer();
  server.Pass(absl::Seconds(10));
  REQUIRE(server.complaints.size() == 1);
  CHECK_THAT(
      server.complaints[0],
      Contains("waits for ps:0 (coordinator) at 10.0.0.1:2222, which answers, but has not attached yet") &&
          !Contains("nothing was heard"));
  // It answered, and then no more.
  server.watch->OnAnswer();
  server.NoAnswer();
  server.Pass(absl::Seconds(10));
  REQUIRE(server.complaints.size() == 2);
  CHECK_THAT(server.complaints[1], Contains("nothing was heard for 20s"));
  // It has not answered since the last complaint.
  server.watch->OnAnswer();
  server.Pass(absl::Seconds(20));
  REQUIRE(server.complaints.size() == 4);
  CHECK_THAT(server.complaints[2], Contains("which answers"));
  CHECK_THAT(server.complaints[3], Contains("nothing was heard for 40s"));
}

TEST_CASE("a complaint names no address that the server does not know") {
  Watched server(/*saved=*/true, /*address=*/"");
  server.Pass(absl::Seconds(10));
  REQUIRE(server.complaints.size() == 1);
  CHECK(server.complaints[0] == "waits for ps:0 (coordinator), of which nothing was heard for 10s");
}

// ---- a cause

TEST_CASE("a cause for which ps:0 cannot be reached ends the server once it has lasted for two seconds") {
  Watched server(/*saved=*/true);
  server.cause = absl::FailedPreconditionError("ps:0 has no TLS");
  server.NoAnswer();
  server.Pass(absl::Seconds(2) - kTick);
  server.NoAnswer();
  CHECK_FALSE(server.end.has_value());
  server.Tick();
  CHECK_FALSE(server.end.has_value());  // it is found by a probe
  server.NoAnswer();
  REQUIRE(server.end.has_value());
  CHECK(*server.end == server.cause);
}

TEST_CASE("a cause that goes away meanwhile, or a ps:0 that is attached anyway, does not") {
  const bool attaches = GENERATE(false, true);
  Watched server(/*saved=*/true);
  const absl::Status cause = absl::FailedPreconditionError("ps:0 has no TLS");
  server.cause = cause;
  server.NoAnswer();
  server.Pass(absl::Seconds(1));
  if (attaches) {
    server.Attach();
  } else {
    server.cause = absl::OkStatus();
  }
  server.NoAnswer();
  server.Lose();
  server.cause = cause;
  server.Pass(absl::Seconds(1));
  server.NoAnswer();  // it counts from here
  server.Pass(absl::Seconds(2) - kTick);
  server.NoAnswer();
  CHECK_FALSE(server.end.has_value());
  server.Pass(kTick);
  server.NoAnswer();
  CHECK(server.end.has_value());
}

TEST_CASE("one probe at a time") {
  Watched server(/*saved=*/true);
  server.hangs = true;
  server.NoAnswer();
  server.NoAnswer();
  server.background.Run();
  CHECK(server.probes == 1);
  server.NoAnswer();
  server.background.Run();
  CHECK(server.probes == 2);
}

}  // namespace
}  // namespace weir
