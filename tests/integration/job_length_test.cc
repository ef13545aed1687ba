// How long a job is, for the program `worker`: data.drop_last, and batches that are larger than the training
// set.
#include <string>

#include "catch2/catch.hpp"
#include "common/program/exit_codes.h"
#include "tests/integration/processes.h"

namespace weir {
namespace {

using Catch::Contains;

// digits.json has 1,500 training examples, and 16 of them in a batch.
constexpr char kConfig[] = "tests/integration/digits.json";

nlohmann::json SummaryOf(const std::vector<std::string>& set) {
  const TestFolder folder;
  std::vector<std::string> args = {"worker/worker", std::string("--config=") + kConfig,
                                   "--summary=" + folder.path("summary.json")};
  for (const std::string& field : set) args.push_back("--set=" + field);
  const RunResult run = RunToEnd(args);
  INFO(run.output);
  REQUIRE(run.status == kExitOk);
  return nlohmann::json::parse(ReadWholeFile(folder.path("summary.json")));
}

TEST_CASE("a job drops its last batch if that has fewer examples: async") {
  const nlohmann::json all = SummaryOf({"consistency.mode=async", "train.epochs=1"});
  CHECK(all["examples"] == 1500);
  const nlohmann::json whole = SummaryOf({"consistency.mode=async", "train.epochs=1", "data.drop_last=true"});
  INFO(whole.dump(2));
  CHECK(whole["examples"] == 93 * 16);
  // The epoch that loses its last examples is evaluated.
  REQUIRE(whole["evaluations"].size() == 1);
  CHECK(whole["evaluations"][0]["epoch"] == 1);
}

TEST_CASE("a job drops its last step if that has fewer examples: sync, two workers and three parts") {
  TestJob job(
      {.config = kConfig,
       .set = {"consistency.mode=sync", "consistency.parts=3", "train.epochs=1", "data.drop_last=true"}});
  job.StartAll();
  job.ExpectAllExit(0);
  CHECK_THAT(job["ps:0"].log(), Contains("step 0 of 31, 1488 examples; data.drop_last leaves out 12"));
  const nlohmann::json summary = job.Summary();
  INFO(summary.dump(2));
  CHECK(summary["examples"] == 31 * 3 * 16);
  CHECK(summary["steps"] == 31);
  CHECK(summary["test_loss"].is_number());
}

TEST_CASE("a job that data.drop_last leaves nothing of is refused") {
  const RunResult run =
      RunToEnd({"worker/worker", std::string("--config=") + kConfig, "--set=data.drop_last=true",
                "--set=data.batch_size=2000", "--set=train.epochs=1"});
  INFO(run.output);
  CHECK(run.status == kExitConfig);
  CHECK_THAT(
      run.output,
      Contains("data.drop_last: leaves nothing of the job, which has 1500 examples: a batch has 2000"));
}

TEST_CASE("a step with more examples than the training set is warned of, once, with both numbers") {
  const std::string warning =
      "a step has 2000 examples (4 x data.batch_size 500), and the training set has 1500: a step goes "
      "through several "
      "epochs, and all 3000 examples of the job are 2 steps";
  TestJob job(
      {.config = kConfig,
       .set = {"consistency.mode=sync", "consistency.parts=4", "train.epochs=2", "data.batch_size=500"}});
  job.StartAll();
  job.ExpectAllExit(0);
  CHECK_THAT(job["worker:0"].log(), Contains(warning));
  CHECK_THAT(job["worker:1"].log(), !Contains("goes through several epochs"));

  const RunResult run =
      RunToEnd({"worker/worker", std::string("--config=") + kConfig, "--set=consistency.mode=async",
                "--set=data.batch_size=1501", "--set=train.epochs=2"});
  INFO(run.output);
  CHECK(run.status == kExitOk);
  CHECK_THAT(run.output,
             Contains("a batch has 1501 examples (data.batch_size 1501), and the training set has 1500"));
}

}  // namespace
}  // namespace weir
