// Two live ps:0 on one folder of checkpoints.
#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/program/exit_codes.h"
#include "tests/integration/processes.h"

namespace weir {
namespace {

using Catch::Contains;

// A ps:0 with a port of its own, which waits for workers.
std::unique_ptr<TestJob> Job(const std::string& directory, const std::string& rate) {
  TestJob::Options options;
  options.ps = options.workers = 1;
  options.set = {absl::StrCat("checkpoint.directory=\"", directory, "\""),
                 absl::StrCat("optimizer.learning_rate=", rate)};
  return std::make_unique<TestJob>(options);
}

TEST_CASE("of two ps:0 that are started at once on one folder exactly one lives, and the other says which") {
  for (int round = 0; round < 15; ++round) {
    CAPTURE(round);
    const TestFolder folder;
    const std::string directory = folder.path("runs");
    const auto a = Job(directory, "0.1"), b = Job(directory, "0.2");
    for (TestJob* job : {a.get(), b.get()}) job->Start("ps:0");
    const Stopwatch watch;
    const auto ended = [](TestJob& job) { return job["ps:0"].Ended(); };
    const auto listens = [](TestJob& job) {
      return job["ps:0"].log().find("listens on") != std::string::npos;
    };
    while (!(ended(*a) && listens(*b)) && !(ended(*b) && listens(*a))) {
      REQUIRE(watch.Elapsed() < kHangLimit);
      REQUIRE_FALSE((ended(*a) && ended(*b)));
      REQUIRE_FALSE((listens(*a) && listens(*b)));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    TestJob& winner = ended(*a) ? *b : *a;
    TestProcess& loser = ended(*a) ? (*a)["ps:0"] : (*b)["ps:0"];
    CHECK(loser.Wait() == kExitConfig);
    CHECK_THAT(loser.log(), Contains("checkpoint.directory: " + directory) &&
                                Contains("is in use by another ps:0, process ") &&
                                Contains("which is still running"));
    // Once the first one is dead, the next one begins at once.
    winner["ps:0"].Signal(SIGSTOP);
    winner["ps:0"].Signal(SIGKILL);
    REQUIRE(winner["ps:0"].Wait() == 128 + SIGKILL);
    const auto next = Job(directory, "0.1");
    (*next).Start("ps:0").WaitForLog("listens on");
    CHECK_THAT((*next)["ps:0"].log(), Contains("took over " + directory + " from process "));
  }
}

}  // namespace
}  // namespace weir
