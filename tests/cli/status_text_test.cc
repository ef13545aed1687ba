#include "cli/report/status_text.h"

#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "catch2/catch.hpp"
#include "cli/report/format.h"
#include "nlohmann/json.hpp"

namespace weir {
namespace {

using Catch::Contains;

v1::ClusterStatus Running() {
  v1::ClusterStatus s;
  s.set_state(v1::RUNNING);
  s.set_name("digits");
  s.set_mode("bounded");
  s.set_staleness_bound(3);
  s.set_num_shards(2);
  s.set_configured_workers(4);
  for (int i : {0, 1, 3}) s.mutable_membership()->add_members()->set_worker(i);
  s.mutable_membership()->set_epoch(5);
  s.set_step(1234);
  s.set_total_steps(2350);
  s.set_pushes(4936);
  s.set_examples(30000);
  s.set_total_examples(60000);
  s.set_seconds(3);
  s.set_examples_per_second(10000);
  s.set_train_loss(0.12341);
  s.mutable_version_staleness()->set_p50(3);
  s.mutable_version_staleness()->set_max(11);
  s.mutable_lead()->set_p50(1);
  s.mutable_lead()->set_max(4);
  s.set_bytes_pushed(33100000);
  s.set_bytes_pulled(40200000);
  return s;
}

TEST_CASE("the line of a running job") {
  auto s = Running();
  CHECK(StatusLine(s) ==
        "digits bounded(3)  step 1,234/2,350 (50%)  loss 0.1234  10.0k examples/s  staleness p50 3 max 11  "
        "workers 3/4  ETA 3.00 s");
  s.mutable_evaluation();  // present, but nothing was evaluated yet
  CHECK_THAT(StatusLine(s), Catch::EndsWith("ETA 3.00 s"));
  CHECK_THAT(StatusReport(s), !Contains("accuracy"));
  s.mutable_evaluation()->set_examples(297);
  s.mutable_evaluation()->set_test_accuracy(0.9832);
  s.mutable_evaluation()->set_test_loss(0.07);
  s.mutable_evaluation()->set_version(12);
  CHECK_THAT(StatusReport(s), Contains("test              accuracy 98.32%, loss 0.0700 at version 12\n"));
  CHECK_THAT(StatusLine(s), Catch::EndsWith("ETA 3.00 s  test accuracy 98.32%"));
  s.mutable_evaluation()->set_test_accuracy(-1);
  CHECK_THAT(StatusReport(s), Contains("test              loss 0.0700 at version 12\n"));
  CHECK_THAT(StatusLine(s), Catch::EndsWith("ETA 3.00 s"));
  SECTION("no worker has reported yet") {
    s.set_examples(32);
    s.set_examples_per_second(0);
    s.clear_train_loss();
    CHECK_THAT(StatusLine(s), Contains("(0%)") && Contains("loss -  - examples/s") && Contains("ETA -"));
  }
  SECTION("the last examples") {
    s.set_state(v1::DRAINING);
    s.set_examples(60000);
    CHECK_THAT(StatusLine(s), Contains("(100%)") && Contains("finishing") && !Contains("ETA"));
  }
  SECTION("a job of no known length") {
    s.set_total_examples(0);
    CHECK_THAT(StatusLine(s), Contains("(0%)") && Contains("ETA -"));
  }
}

TEST_CASE("a task of which nothing is heard is shown as silent, one that is gone without a time") {
  auto s = Running();
  for (const auto& [name, phase, state, heard] :
       std::vector<std::tuple<const char*, v1::TaskPhase, const char*, double>>{
           {"ps:0", v1::TASK_LIVE, "live", 0.5},
           {"ps:1", v1::TASK_LIVE, "live", 12},
           {"worker:0", v1::TASK_LIVE, "live", 0.25},
           {"worker:1", v1::TASK_LEFT, "left", 0}}) {
    v1::TaskStatus& task = *s.add_tasks();
    task.set_task(name);
    task.set_phase(phase);
    task.set_state(state);
    task.set_seconds_since_heard(heard);
  }
  CHECK_THAT(StatusLine(s), Catch::EndsWith("  ETA 3.00 s  ps:1 silent for 12.0 s"));
  std::vector<std::string> rows;
  for (absl::string_view row : absl::StrSplit(StatusReport(s), '\n')) {
    if (absl::StartsWith(row, "ps:") || absl::StartsWith(row, "worker:")) {
      rows.push_back(absl::StrJoin(absl::StrSplit(row, ' ', absl::SkipEmpty()), " "));
    }
  }
  CHECK(rows == std::vector<std::string>{"ps:0 live - 0 500 ms ago", "ps:1 silent - 0 12.0 s ago",
                                         "worker:0 live 0 - 250 ms ago", "worker:1 left 0 - -"});
  s.set_state(v1::FAILED);
  CHECK_THAT(StatusReport(s), !Contains("silent"));
}

TEST_CASE("the line of a job that has not begun, or has failed") {
  auto s = Running();
  s.set_mode("sync");
  s.set_state(v1::STARTING);
  s.add_waiting_for("worker:2");
  s.add_waiting_for("ps:1\x1b[2J");
  CHECK(StatusLine(s) == "digits sync  starting  workers 3/4  waiting for worker:2, ps:1\\x1b[2J");
  s.set_state(v1::FAILED);
  s.set_failure("ps:1 was lost");
  CHECK(StatusLine(s) == "digits sync  failed: ps:1 was lost");
}

TEST_CASE("the line of a job that lost a server") {
  auto s = Running();
  s.set_mode("sync");
  s.set_state(v1::RECOVERING);
  s.mutable_membership()->clear_members();
  s.add_waiting_for("ps:1 at 127.0.0.1:4243");
  CHECK(StatusLine(s) ==
        "digits sync  recovering  from the start  workers 0/4  waiting for ps:1 at 127.0.0.1:4243");
  s.set_checkpoint("/runs/7/step-00001200");
  CHECK_THAT(StatusLine(s), Contains("recovering  from step-00001200  workers 0/4"));
  CHECK_THAT(StatusReport(s), Contains("job               digits sync, recovering\n") &&
                                  Contains("checkpoint        /runs/7/step-00001200\n") &&
                                  !Contains("recoveries"));
  s.set_state(v1::RUNNING);
  s.set_recoveries(2);
  CHECK_THAT(StatusLine(s), Catch::EndsWith("ETA 3.00 s  recoveries 2"));
  s.set_lost_pushes(1700);
  CHECK_THAT(StatusLine(s), Catch::EndsWith("recoveries 2  lost pushes 1,700"));
  CHECK_THAT(StatusReport(s), Contains("recoveries        2 of lost servers, 1,700 pushes lost\n"));
  s.set_pushes_refused(12);
  CHECK_THAT(StatusLine(s), Catch::EndsWith("lost pushes 1,700  refused pushes 12"));
  CHECK_THAT(StatusReport(s), Contains(" pulled, 4,936 pushes, 12 refused\n"));
  const auto json = nlohmann::json::parse(MessageJson(s));
  CHECK(json["pushes_refused"] == 12);
  CHECK(json["checkpoint"] == "/runs/7/step-00001200");
  CHECK(json["recoveries"] == 2);
  CHECK(json["lost_pushes"] == 1700);
}

TEST_CASE("the report") {
  auto s = Running();
  s.add_waiting_for("worker:2");
  auto* live = s.add_tasks();
  live->set_task("worker:0");
  live->set_state("live");
  live->set_phase(v1::TASK_LIVE);
  live->set_clock(1234);
  live->set_seconds_since_heard(0.25);
  live->set_address("127.0.0.1:40000");
  auto* server = s.add_tasks();
  server->set_task("ps:0");
  server->set_state("live");
  server->set_phase(v1::TASK_LIVE);
  server->set_version(4936);
  server->set_seconds_since_heard(0.25);
  server->set_address("127.0.0.1:40001");
  auto* expected = s.add_tasks();
  expected->set_task("worker:2");
  expected->set_state("expected");
  expected->set_phase(v1::TASK_EXPECTED);
  auto* waiting = s.add_tasks();
  waiting->set_task("worker:3");
  waiting->set_state("waiting");
  waiting->set_phase(v1::TASK_WAITING);
  CHECK(StatusReport(s) ==
        "job               digits bounded(3), running\n"
        "waiting for       worker:2\n"
        "step              1,234 of 2,350\n"
        "examples          30,000 of 60,000, 10.0k a second\n"
        "time              3.00 s of training in this run, 3.00 s to go\n"
        "train loss        0.1234\n"
        "version staleness p50 3 max 11\n"
        "lead              p50 1 max 4 clocks\n"
        "traffic           33.1 MB pushed, 40.2 MB pulled, 4,936 pushes\n"
        "workers           3 of 4, membership 5\n"
        "connections       not encrypted\n"
        "\n"
        "task      state     clock  version  last heard  address\n"
        "--------  --------  -----  -------  ----------  ---------------\n"
        "worker:0  live      1,234        -  250 ms ago  127.0.0.1:40000\n"
        "ps:0      live          -    4,936  250 ms ago  127.0.0.1:40001\n"
        "worker:2  expected      -        -           -\n"
        "worker:3  waiting       -        -           -\n");
}

TEST_CASE("The report has what the program logs") {
  v1::ClusterStatus status;
  CHECK_THAT(StatusReport(status), !Catch::Contains("logged"));
  for (const auto& [name, value] : {std::pair("auc", 0.71234567), std::pair("lr", 1e-5)}) {
    v1::LoggedMetric& metric = *status.add_metrics();
    metric.set_name(name);
    metric.set_last(value);
  }
  CHECK_THAT(StatusReport(status),
             Catch::Contains("\nlogged            auc 0.712346\n                  lr 1e-05\n"));
}

TEST_CASE("The report of a job whose rows do not wait says so, and what that costs in sync") {
  v1::ClusterStatus status;
  status.set_mode("sync");
  CHECK_THAT(StatusReport(status), !Catch::Contains("rows take effect"));
  status.set_tables_async(true);
  CHECK_THAT(StatusReport(status),
             Catch::Contains(
                 "tables            rows take effect on arrival, so the run does not repeat bit for bit\n"));
  status.set_mode("bounded");
  CHECK_THAT(StatusReport(status), Catch::Contains("tables            rows take effect on arrival\n"));
}

TEST_CASE("as JSON, fields that are zero too") {
  v1::ClusterStatus s = Running();
  s.set_train_loss(std::numeric_limits<double>::quiet_NaN());
  s.add_waiting_for("\"ps:1\"");
  const auto json = nlohmann::json::parse(MessageJson(s));
  CHECK(json["state"] == "running");
  CHECK(json["step"] == 1234);
  CHECK(json["examples_per_second"] == 10000.0);
  CHECK(json["train_loss"].is_null());
  CHECK(json["evaluation"].is_null());
  CHECK(json["failure"] == "");
  CHECK(json["version_staleness"]["p99"] == 0);
  CHECK(json["membership"]["members"].size() == 3);
  CHECK(json["membership"]["members"][0]["worker"] == 0);
  CHECK(json["waiting_for"] == nlohmann::json({"\"ps:1\""}));
  CHECK(json["tasks"] == nlohmann::json::array());
}

TEST_CASE("The servers' time for the hash of a job's rows is that of the server with the most bytes") {
  v1::ClusterStatus status;
  CHECK(TimeForDigests(status) == absl::ZeroDuration());
  for (const uint64_t table : {1, 2}) {
    v1::TableStatus& of = *status.add_tables();
    of.mutable_all()->set_bytes(100'000'000'000);
    of.add_shards()->set_bytes(table * 500'000'000);
    of.add_shards()->set_bytes(table * 1'000'000'000);
  }
  CHECK(TimeForDigests(status) == absl::Seconds(60));
}

v1::Wait& Add(v1::ClusterStatus& status, const char* server, const char* calls, double seconds,
              const char* waiting, const char* reason, const char* awaited) {
  v1::Wait& wait = *status.add_waits();
  wait.set_server(server);
  wait.set_calls(calls);
  wait.set_seconds(seconds);
  wait.add_waiting(waiting);
  wait.set_reason(reason);
  wait.add_awaited(awaited);
  return wait;
}

TEST_CASE("the chain goes from the longest wait over the servers to who waits for nobody") {
  v1::ClusterStatus status;
  status.set_seconds_since_update(7.5);
  Add(status, "ps:0", "a push of worker:2 at clock 5", 7, "worker:2", "memory of weights", "worker:3");
  Add(status, "ps:1", "a pull of worker:0 at clock 9", 8, "worker:0", "worker:2 (at clock 5)", "worker:2");
  v1::TaskStatus& task = *status.add_tasks();
  task.set_task("worker:3");
  task.set_state("live");
  task.set_phase(v1::TASK_LIVE);
  task.set_seconds_since_heard(9);
  const std::string text = WaitChain(status);
  CHECK_THAT(text, Contains("last update       7.50 s ago\n"));
  CHECK_THAT(
      text,
      Contains("the chain of the longest wait:\n"
               "  a pull of worker:0 at clock 9 waits 8.00 s on ps:1 for worker:2 (at clock 5)\n"
               "  a push of worker:2 at clock 5 waits 7.00 s on ps:0 for memory of weights\n"
               "  worker:3 has no call that waits: it computes, or has stopped. It was heard 9.00 s ago\n"));
  SECTION("a task that is gone") {
    status.clear_tasks();
    CHECK_THAT(WaitChain(status), Contains("  worker:3 is not in the job\n"));
  }
  SECTION("who waits for each other ends the chain, too") {
    status.mutable_waits(0)->set_awaited(0, "worker:0");
    CHECK_THAT(WaitChain(status), Catch::EndsWith("for memory of weights\n"));
  }
}

// A running job whose ps:1 was stopped 12 s ago.
v1::ClusterStatus Stopped() {
  v1::ClusterStatus status;
  status.set_state(v1::RUNNING);
  for (const char* name : {"ps:0", "ps:1", "worker:0", "worker:1"}) {
    v1::TaskStatus& task = *status.add_tasks();
    task.set_task(name);
    task.set_phase(v1::TASK_LIVE);
    task.set_seconds_since_heard(0.25);
  }
  status.mutable_tasks(1)->set_address("10.0.0.1:2222");
  status.mutable_tasks(1)->set_seconds_since_heard(12);
  return status;
}
constexpr char kStopped[] =
    "ps:1 at 10.0.0.1:2222 stands still, or is cut off: nothing was heard of it for 12.0 s\n";

TEST_CASE("a server that stands still is named first, ends the chain, and its waits have their age") {
  v1::ClusterStatus status = Stopped();
  status.add_waiting_for("ps:1 at 10.0.0.1:2222 to answer");
  CHECK(WaitChain(status) == kStopped);
  Add(status, "ps:1", "a pull of worker:1 at clock 3", 0.5, "worker:1", "worker:0 (at clock 2)", "worker:0");
  Add(status, "ps:0", "a pull of worker:0 at clock 4", 0.25, "worker:0", "worker:1 (at clock 3)", "worker:1");
  std::string text = WaitChain(status);
  CHECK_THAT(text, Catch::StartsWith(kStopped));
  CHECK_THAT(text,
             Contains("\na pull of worker:1 at clock 3 waits 500 ms on ps:1 for worker:0 (at clock 2) (as of "
                      "12.0 s ago)\n"));
  CHECK_THAT(text, Contains("the chain of the longest wait:\n"
                            "  a pull of worker:0 at clock 4 waits 250 ms on ps:0 for worker:1 (at clock 3)\n"
                            "  a pull of worker:1 at clock 3"));
  CHECK_THAT(text, Catch::EndsWith(std::string("  ") + kStopped));
  // A healthy worker is not blamed.
  status.mutable_waits()->DeleteSubrange(0, 1);
  text = WaitChain(status);
  CHECK_THAT(text,
             Contains("  worker:1 has no call that waits on a server that answers: it computes, or waits for "
                      "one that does not. It was heard 250 ms ago\n"));
  CHECK_THAT(text, Catch::EndsWith(std::string("  ") + kStopped));
  // Nor is the commit.
  status.mutable_waits(0)->clear_awaited();
  CHECK_THAT(WaitChain(status), Catch::EndsWith(std::string("  ") + kStopped));
}

TEST_CASE("a worker that stands still is named first, and ends the chain") {
  v1::ClusterStatus status = Stopped();
  status.mutable_tasks(1)->set_seconds_since_heard(0.1);
  status.mutable_tasks(3)->set_seconds_since_heard(7);
  Add(status, "ps:0", "a pull of worker:0 at clock 4", 6, "worker:0", "worker:1 (at clock 3)", "worker:1");
  const char* const line = "worker:1 stands still, or is cut off: nothing was heard of it for 7.00 s\n";
  CHECK_THAT(WaitChain(status), Catch::StartsWith(line) && Catch::EndsWith(std::string("  ") + line));
  // A job that is over hears of nobody.
  status.set_state(v1::DONE);
  CHECK_THAT(WaitChain(status), !Contains("stands still"));
}

TEST_CASE("where no call waits, it says what the job waits for, or that nothing does") {
  v1::ClusterStatus status;
  status.set_seconds_since_update(0.5);
  CHECK(WaitChain(status) == "no call waits on any server; the last update was 500 ms ago\n");
  status.add_waiting_for("worker:1 at 10.0.0.1:2222");
  CHECK(WaitChain(status) == "the job waits for worker:1 at 10.0.0.1:2222\n");
}

}  // namespace
}  // namespace weir
