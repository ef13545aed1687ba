// The bits of a sync run do not depend on which worker processes are killed when, nor on which processes take
// their place.
#include <algorithm>
#include <csignal>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/program/exit_codes.h"
#include "tests/integration/processes.h"
#include "tests/integration/sync_run.h"

namespace weir {
namespace {

// Delayed, so that the job is still young when the kills come. A kill rarely hits a computation.
const std::vector<std::string> kSlow = {"debug.worker_delay=0.02", "cluster.grace_seconds=0.05"};

uint64_t IncarnationOf(const v1::ClusterStatus& status, uint32_t rank) {
  for (const v1::Member& member : status.membership().members()) {
    if (member.worker() == rank && !member.joining()) return member.incarnation();
  }
  return 0;
}

// A job of real processes, its workers worker:0, worker:1, ...
class Job {
 public:
  Job(uint32_t servers, uint32_t workers, std::vector<std::string> more = {}) : workers_(workers) {
    TestJob::Options options;
    options.ps = servers;
    options.workers = workers;
    options.config = folder_.Write("job.json", DigitsJobText());
    options.set = kSlow;
    options.set = With(std::move(options.set), more);
    overrides_ = std::move(more);
    job_ = std::make_unique<TestJob>(options);
    job_->StartAll();
  }

  TestProcess& worker(uint32_t rank) { return (*job_)[Name(rank)]; }

  void WaitForStep(uint64_t step) {
    const auto status = job_->WaitForStatus("step " + std::to_string(step), [step](const auto& status) {
      return status.state() == v1::RUNNING && status.step() >= step;
    });
    CHECK(status.step() < status.total_steps());
  }

  // SIGKILL, then waits until the others know.
  void Kill(uint32_t rank) {
    worker(rank).Signal(SIGKILL);
    CHECK(worker(rank).Wait() == 128 + SIGKILL);
    WaitUntilTakenOut(rank);
  }

  void WaitUntilTakenOut(uint32_t rank) {
    const auto status = job_->WaitForStatus(
        Name(rank) + " taken out", [rank](const auto& status) { return IncarnationOf(status, rank) == 0; });
    CHECK(status.state() == v1::RUNNING);
  }

  // Starts processes in the place of dead ones; the living ones are stopped meanwhile, so that the job does
  // not end before the new ones have joined.
  void Replace(const std::vector<uint32_t>& ranks) {
    const auto is_new = [&](uint32_t rank) { return std::count(ranks.begin(), ranks.end(), rank) > 0; };
    SignalAllBut(is_new, SIGSTOP);
    for (uint32_t rank : ranks) job_->Start(Name(rank));
    const auto status = job_->WaitForStatus("the new workers", [&](const auto& status) {
      return std::all_of(ranks.begin(), ranks.end(),
                         [&](uint32_t rank) { return IncarnationOf(status, rank) > 0; });
    });
    CHECK(status.state() == v1::RUNNING);
    SignalAllBut(is_new, SIGCONT);
  }

  // Waits until the job is done; the workers in `except` have ended before.
  void CheckBits(const std::vector<uint32_t>& except = {}) {
    for (const std::string& task : job_->tasks()) {
      const bool gone =
          std::any_of(except.begin(), except.end(), [&](uint32_t rank) { return task == Name(rank); });
      if (!gone) job_->ExpectExit(task, kExitOk);
    }
    const SerialRun& expected = SerialDigits(overrides_);
    const nlohmann::json summary = job_->Summary();
    CHECK(summary["steps"] == expected.steps);
    CHECK(summary["weights_sha256"] == expected.weights_sha256);
  }

 private:
  static std::string Name(uint32_t rank) { return "worker:" + std::to_string(rank); }

  template <typename Skip>
  void SignalAllBut(const Skip& skip, int signal) {
    for (uint32_t rank = 0; rank < workers_; ++rank) {
      if (!skip(rank)) worker(rank).Signal(signal);
    }
  }

  const uint32_t workers_;
  std::vector<std::string> overrides_;
  const TestFolder folder_;
  std::unique_ptr<TestJob> job_;
};

TEST_CASE("nobody is killed", "[transports]") {
  Job job(3, 4);
  job.CheckBits();
}

TEST_CASE("a worker is killed in the middle") {
  const auto [step, rank] = GENERATE(table<uint64_t, uint32_t>({{0, 1}, {1, 0}, {7, 1}, {20, 0}, {35, 1}}));
  INFO("worker " << rank << " at step " << step);
  Job job(2, 2);
  job.WaitForStep(step);
  job.Kill(rank);
  job.CheckBits({rank});
}

TEST_CASE("a worker is killed in the middle of its local steps") {
  const uint32_t rank = GENERATE(0, 1);
  // The job has 26 steps.
  Job job(2, 2,
          {R"(local={"steps":8,"inner":{"type":"adam","learning_rate":0.01}})", "consistency.parts=2",
           "optimizer.type=nesterov", "train.examples=3301"});
  job.WaitForStep(4 + 5 * rank);
  job.Kill(rank);
  job.CheckBits({rank});
}

TEST_CASE("all but one are killed, one after another") {
  Job job(2, 4);
  for (uint32_t rank : {2, 0, 3}) {
    job.WaitForStep(5 * rank + 3);
    job.Kill(rank);
  }
  job.CheckBits({0, 2, 3});
}

TEST_CASE("a worker is killed and comes again, over and over", "[transports]") {
  Job job(2, 2, {"cluster.lease_seconds=60"});
  for (uint64_t round = 0; round < 6; ++round) {
    const uint32_t rank = round % 2;
    job.WaitForStep(2 + 5 * round);
    job.Kill(rank);
    job.Replace({rank});
  }
  job.CheckBits();
}

TEST_CASE("all workers are killed and others go on") {
  Job job(2, 2, {"cluster.lease_seconds=60"});
  job.WaitForStep(10);
  job.Kill(0);
  job.Kill(1);
  job.Replace({0, 1});
  job.CheckBits();
}

TEST_CASE("a worker that stands still loses its lease, and what it pushes when it wakes changes nothing",
          "[transports]") {
  Job job(2, 2, {"cluster.lease_seconds=3"});
  job.WaitForStep(10);
  job.worker(1).Signal(SIGSTOP);
  job.WaitUntilTakenOut(1);
  job.worker(1).Signal(SIGCONT);
  // The worker joins again, or learns that the job is done.
  job.CheckBits();
}

}  // namespace
}  // namespace weir
