// The checker against logs made by hand: a good log of each mode, and that log with one fault at a time.
#include "tests/history/history_checker.h"

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "tests/history/history_log.h"

namespace weir {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using Clocks = std::vector<std::pair<uint32_t, uint64_t>>;
using Mode = HistoryRules::Mode;

class Log {
 public:
  HistoryEvent& Pull(uint32_t worker, uint64_t clock, uint64_t version, Clocks clocks = {}) {
    HistoryEvent& event = Add(worker, clock, version);
    event.clocks = std::move(clocks);
    return event;
  }
  HistoryEvent& Push(uint32_t worker, uint64_t clock, uint64_t version, uint64_t staleness, uint64_t batch) {
    HistoryEvent& event = Add(worker, clock, version);
    event.is_push = true;
    event.staleness = staleness;
    event.batch = batch;
    return event;
  }
  std::vector<HistoryEvent> events;

 private:
  HistoryEvent& Add(uint32_t worker, uint64_t clock, uint64_t version) {
    HistoryEvent& event = events.emplace_back();
    event.where = absl::StrCat("log:", events.size() - 1);
    event.worker = worker;
    event.worker_incarnation = worker + 10;
    event.clock = clock;
    event.version = version;
    event.incarnation = 5;
    return event;
  }
};

HistoryRules Bounded(uint64_t staleness) {
  HistoryRules rules;
  rules.mode = Mode::kBounded;
  rules.staleness = staleness;
  return rules;
}

// bounded(1), two workers, three clocks each. Worker 0 has no work after its third push.
std::vector<HistoryEvent> Good() {
  Log log;
  log.Pull(0, 0, 0, {{0, 0}, {1, 0}});  // 0
  log.Pull(1, 0, 0, {{0, 0}, {1, 0}});  // 1
  log.Push(0, 0, 1, 0, 0);              // 2
  log.Pull(0, 1, 1, {{0, 1}, {1, 0}});  // 3
  log.Push(0, 1, 2, 0, 1);              // 4: a lead of 2
  log.Push(1, 0, 3, 2, 2);              // 5
  log.Pull(0, 2, 3, {{0, 2}, {1, 1}});  // 6
  log.Pull(1, 1, 3, {{0, 2}, {1, 1}});  // 7
  log.Push(1, 1, 4, 0, 3);              // 8
  log.Push(0, 2, 5, 1, 4);              // 9
  log.Pull(1, 2, 4, {{0, 2}, {1, 2}});  // 10
  log.Push(1, 2, 6, 1, 5);              // 11
  log.Pull(1, 3, 6, {{1, 3}});          // 12
  return log.events;
}

// The names of the violated rules.
std::string Violated(const std::vector<HistoryEvent>& events, const HistoryRules& rules) {
  const HistoryReport report = CheckHistory(events, rules);
  std::string names;
  for (const auto& [rule, count] : report.violations)
    absl::StrAppend(&names, names.empty() ? "" : ", ", Name(rule));
  return names;
}

std::string ViolatedWith(const std::function<void(std::vector<HistoryEvent>&)>& change) {
  std::vector<HistoryEvent> events = Good();
  change(events);
  return Violated(events, Bounded(1));
}

TEST_CASE("a history as it should be") {
  const HistoryReport report = CheckHistory(Good(), Bounded(1));
  INFO(report.ToString());
  CHECK(report.total() == 0);
  CHECK(report.pulls == 7);
  CHECK(report.pushes == 6);
  CHECK(report.max_lead == 2);
  CHECK(report.unaccounted_versions == 0);
  CHECK(Violated(Good(), Bounded(100)).empty());
  HistoryRules async;
  async.mode = Mode::kAsync;
  CHECK(Violated(Good(), async).empty());
}

TEST_CASE("the same history breaks a tighter bound") {
  const HistoryReport report = CheckHistory(Good(), Bounded(0));
  INFO(report.ToString());
  CHECK(Violated(Good(), Bounded(0)) == "freshness, watermarks, lead");
  // The pulls 3 and 6; the push 4.
  CHECK(report.count(HistoryRule::kFreshness) == 2);
  CHECK(report.count(HistoryRule::kWatermarks) == 2);
  CHECK(report.count(HistoryRule::kLead) == 1);
  CHECK_THAT(report.ToString(),
             Contains("log:3: freshness: a pull at clock 1 read version 1 of shard 0, where "
                      "worker 1 was at clock 0"));
}

TEST_CASE("versions: made once each, without gaps, in one incarnation") {
  CHECK(ViolatedWith([](auto& e) { e[11].version = 7, e[11].staleness = 2, e[12].version = 7; }) ==
        "versions");
  CHECK_THAT(ViolatedWith([](auto& e) { e[5].version = 2, e[5].staleness = 1; }), StartsWith("versions"));
  CHECK_THAT(ViolatedWith([](auto& e) { e[12].version = 8; }), StartsWith("versions"));
  CHECK(ViolatedWith([](auto& e) { e[10].incarnation = 6; }) == "versions");
  // A push that was never acknowledged.
  CHECK_THAT(ViolatedWith([](auto& e) { e.erase(e.begin() + 8); }), StartsWith("versions"));
}

TEST_CASE("clocks: consecutive, with rising versions, in one incarnation") {
  CHECK_THAT(ViolatedWith([](auto& e) { e[9].clock = 3, e[6].clock = 3; }), StartsWith("clocks"));
  CHECK_THAT(ViolatedWith([](auto& e) { e[9].clock = 1, e[9].batch = 1; }), StartsWith("clocks"));
  CHECK_THAT(ViolatedWith([](auto& e) { std::swap(e[2].version, e[4].version); }), StartsWith("clocks"));
  CHECK_THAT(ViolatedWith([](auto& e) { e[9].worker_incarnation = e[6].worker_incarnation = 99; }),
             StartsWith("clocks"));
}

TEST_CASE("batches: each once on each shard, the same on all") {
  CHECK(ViolatedWith([](auto& e) { e[9].batch = 3; }) == "batches");
  const std::vector<HistoryEvent> one = Good();
  std::vector<HistoryEvent> both = one;
  for (HistoryEvent event : one) {
    event.shard = 1;
    event.incarnation = 6;
    both.push_back(event);
  }
  CHECK(Violated(both, Bounded(1)).empty());
  std::swap(both[13 + 2].batch, both[13 + 4].batch);
  CHECK(Violated(both, Bounded(1)) == "batches");
  // One shard's answer to one push is missing.
  both = one;
  for (HistoryEvent event : one) {
    event.shard = 1;
    if (event.where != "log:11" && event.where != "log:12") both.push_back(event);
  }
  CHECK(Violated(both, Bounded(1)) == "batches");
}

TEST_CASE("freshness: a pull that lacks an update, though its watermarks say otherwise") {
  CHECK(ViolatedWith([](auto& e) { e[6].version = 2, e[9].staleness = 2; }) == "freshness, watermarks");
}

TEST_CASE("own pushes: a pull that lacks the worker's last push") {
  CHECK(ViolatedWith([](auto& e) {
          e[3].version = 0, e[3].clocks = {{0, 0}, {1, 0}}, e[4].staleness = 1;
        }) == "own pushes");
}

TEST_CASE("watermarks: as the pushes say, and complete") {
  CHECK(ViolatedWith([](auto& e) { e[6].clocks[1].second = 2; }) == "watermarks");
  CHECK(ViolatedWith([](auto& e) { e[6].clocks[1].second = 0; }) == "watermarks");
  CHECK(ViolatedWith([](auto& e) { e[6].clocks.pop_back(); }) == "watermarks");
  CHECK(ViolatedWith([](auto& e) { e[6].clocks.emplace_back(1, 1); }) == "watermarks");
  CHECK(ViolatedWith([](auto& e) { e[6].clocks.emplace_back(2, 4); }) == "watermarks");
  // Worker 0 may still be listed after its last push.
  CHECK(ViolatedWith([](auto& e) { e[12].clocks = {{0, 3}, {1, 3}}; }).empty());
  CHECK(ViolatedWith([](auto& e) { e[12].clocks = {{0, 2}, {1, 3}}; }) == "watermarks");
}

TEST_CASE("monotonic: no worker reads an older version than before") {
  CHECK(ViolatedWith([](auto& e) {
          e[10].version = 2, e[10].clocks = {{0, 2}, {1, 0}}, e[11].staleness = 3;
        }) == "freshness, own pushes, watermarks, monotonic");
}

TEST_CASE("staleness: as the versions say") {
  CHECK(ViolatedWith([](auto& e) { e[5].staleness = 1; }) == "staleness");
  CHECK(ViolatedWith([](auto& e) { e.erase(e.begin()); }) == "staleness");
}

TEST_CASE("async: own pushes, no bound") {
  HistoryRules async;
  async.mode = Mode::kAsync;
  Log log;
  log.Pull(0, 0, 0, {{0, 0}, {1, 0}});
  log.Pull(1, 0, 0, {{0, 0}, {1, 0}});
  for (uint64_t clock = 0; clock < 20; ++clock) {
    log.Push(0, clock, clock + 1, 0, clock);
    log.Pull(0, clock + 1, clock + 1, {{0, clock + 1}, {1, 0}});
  }
  log.Push(1, 0, 21, 20, 20);
  CHECK(Violated(log.events, async).empty());
  CHECK(CheckHistory(log.events, async).max_lead == 20);
  log.events[3].version = 0;
  log.events[3].clocks[0].second = 0;
  log.events[4].staleness = 1;
  CHECK(Violated(log.events, async) == "own pushes");
}

// sync, R = 2, two workers, the last step of one part.
std::vector<HistoryEvent> GoodSync() {
  Log log;
  for (uint64_t step = 0; step < 3; ++step) {
    for (uint32_t worker = 0; worker < 2; ++worker) {
      log.Pull(worker, step, step);
      if (step == 2 && worker == 1) continue;
      log.Push(worker, step, step + 1, 0, 2 * step + worker).part = worker;
    }
  }
  return log.events;
}

TEST_CASE("sync: every pull at clock c reads version c, every step holds all its parts") {
  HistoryRules sync;
  sync.mode = Mode::kSync;
  sync.parts = 2;
  std::vector<HistoryEvent> events = GoodSync();
  CHECK(Violated(events, sync).empty());
  events[4].version = 0;
  CHECK_THAT(Violated(events, sync), StartsWith("step"));
  events = GoodSync();
  events[5].version = 1;
  CHECK_THAT(Violated(events, sync), Contains("clocks"));
  events = GoodSync();
  events[3].outcome = "STEP_PAST";
  CHECK_THAT(Violated(events, sync), StartsWith("versions"));
  events = GoodSync();
  events[3].part = 0;
  CHECK_THAT(Violated(events, sync), StartsWith("versions"));
  events = GoodSync();
  events[1].staleness = 1;
  CHECK(Violated(events, sync) == "staleness");
}

TEST_CASE("a push that was refused counts as completed") {
  std::vector<HistoryEvent> events = Good();
  // The push of worker 1 at clock 1 (batch 3) made no version.
  events[8].outcome = "REFUSED";
  events[8].version = 3;
  for (size_t i : {9, 11}) --events[i].version;
  events[9].staleness = 0;
  // The staleness for version 3; the refusal may have come before or after these.
  events[10].version = 3;
  events[12].version = 5;
  CHECK(Violated(events, Bounded(1)).empty());
  events[10].clocks[1].second = 1;
  CHECK(Violated(events, Bounded(1)).empty());
  events[12].clocks[0].second = 2;
  CHECK(Violated(events, Bounded(1)) == "watermarks");
}

TEST_CASE("what did not happen and what readers saw is left out") {
  std::vector<HistoryEvent> events = Good();
  HistoryEvent event = events[12];
  event.version = 0;
  event.pin = 3;
  events.push_back(event);
  event.pin = 0;
  event.outcome = "JOB_OVER";
  event.incarnation = 0;
  events.push_back(event);
  event.is_push = true;
  event.outcome = "FENCED";
  events.push_back(event);
  const HistoryReport report = CheckHistory(events, Bounded(1));
  CHECK(report.total() == 0);
  CHECK(report.pulls == 7);
}

TEST_CASE("a worker that died and came back") {
  // Worker 1 dies after version 3, its log lacks the push that made version 4, and the worker comes back at
  // clock 2.
  Log log;
  log.events = Good();
  log.events.resize(8);
  log.Push(0, 2, 5, 1, 4);
  log.Pull(0, 3, 5, {{0, 3}, {1, 2}});
  HistoryEvent* pull = &log.Pull(1, 2, 5, {{0, 3}, {1, 2}});
  pull->worker_incarnation = 20;
  log.Push(1, 2, 6, 0, 5).worker_incarnation = 20;
  log.Pull(1, 3, 6, {{0, 3}, {1, 3}}).worker_incarnation = 20;
  log.Push(0, 3, 7, 1, 6);
  log.Push(1, 3, 8, 1, 7).worker_incarnation = 20;
  HistoryRules rules = Bounded(1);
  rules.membership_changes = true;
  HistoryReport report = CheckHistory(log.events, rules);
  INFO(report.ToString());
  CHECK(report.total() == 0);
  CHECK(report.unaccounted_versions == 1);
  // The known part of the log is still held to the bounds.
  rules.staleness = 0;
  CHECK_THAT(Violated(log.events, rules), Contains("watermarks"));
  rules.staleness = 1;
  log.events[12].clocks[1].second = 1;
  CHECK(Violated(log.events, rules) == "watermarks");
  log.events[12].clocks[1].second = 3;
  log.events[13].batch = 5;
  CHECK(Violated(log.events, rules) == "batches");
}

TEST_CASE("what an incarnation that left no log changed, and who had no work, is not judged") {
  HistoryRules rules = Bounded(1);
  rules.membership_changes = true;
  Log log;
  log.Pull(0, 0, 0, {{0, 0}, {1, 0}});  // 0
  log.Pull(1, 0, 0, {{0, 0}, {1, 0}});  // 1
  log.Push(0, 0, 1, 0, 0);              // 2
  log.Push(1, 0, 2, 1, 1);              // 3
  // Worker 1 has no work for a while.
  log.Pull(0, 1, 2, {{0, 1}});          // 4
  log.Push(0, 1, 3, 0, 2);              // 5
  log.Pull(1, 1, 3, {{0, 2}, {1, 1}});  // 6
  log.Push(1, 1, 4, 0, 3);              // 7
  // Worker 1 was killed and came back at clock 1, and was killed again before it could write that down.
  log.Pull(0, 2, 4, {{0, 2}, {1, 1}});  // 8
  HistoryReport report = CheckHistory(log.events, rules);
  INFO(report.ToString());
  CHECK(report.total() == 0);
  // While worker 1 computes it must be listed, with the clock that its pushes give.
  log.Push(0, 2, 5, 0, 4);              // 9
  log.Pull(1, 2, 4, {{0, 2}, {1, 2}});  // 10
  log.Pull(0, 3, 5, {{0, 3}, {1, 2}});  // 11
  log.Push(1, 2, 6, 1, 5);              // 12
  log.events[8].clocks = {{0, 2}, {1, 2}};
  CHECK(CheckHistory(log.events, rules).total() == 0);
  log.events[11].clocks = {{0, 3}};
  CHECK(Violated(log.events, rules) == "watermarks");
  log.events[11].clocks = {{0, 3}, {1, 1}};
  CHECK(Violated(log.events, rules) == "watermarks");
}

TEST_CASE("a server that was killed and came back: each of its incarnations is judged by itself") {
  HistoryRules rules = Bounded(1);
  rules.membership_changes = true;
  rules.server_restarts = true;
  // Incarnation 5 made versions 1 to 3; incarnation 6 begins at version 1, and worker 0's clock 1 is lost.
  Log log;
  log.Pull(0, 0, 0, {{0, 0}});                        // 0
  log.Push(0, 0, 1, 0, 0);                            // 1
  log.Pull(0, 1, 1, {{0, 1}});                        // 2
  log.Push(0, 1, 2, 0, 1);                            // 3
  log.Pull(0, 2, 2, {{0, 2}});                        // 4
  log.Push(0, 2, 0, 0, 2).outcome = "STALE_VERSION";  // 5
  log.Pull(0, 3, 1, {{0, 3}});                        // 6
  log.Push(0, 3, 2, 0, 3);                            // 7
  for (size_t i = 5; i < log.events.size(); ++i) log.events[i].incarnation = 6;
  CHECK(CheckHistory(log.events, rules).ToString() ==
        "4 pulls, 3 pushes, largest lead 0, 0 versions unaccounted for, 0 violations");

  SECTION("a restored server shows the clock of an incarnation that has ended since the checkpoint") {
    log.Pull(1, 4, 2, {{0, 4}, {1, 7}}).incarnation = 6;
    log.Push(1, 4, 3, 0, 4).incarnation = 6;
    CHECK(CheckHistory(log.events, rules).total() == 0);
  }
  SECTION("a watermark that the pushes contradict") {
    log.Pull(0, 4, 2, {{0, 2}}).incarnation = 6;
    CHECK(CheckHistory(log.events, rules).count(HistoryRule::kWatermarks) >= 1);
  }
  SECTION("an update of an earlier incarnation's weights is applied") {
    log.events[5] = log.events[7];
    log.events[5].clock = 2;
    log.events[5].batch = 2;
    log.events[7].version = 3;
    log.events[7].staleness = 1;
    CHECK(CheckHistory(log.events, rules).count(HistoryRule::kStaleness) == 1);
  }
  SECTION("an earlier incarnation answers again") {
    log.events[7].incarnation = 5;
    CHECK(CheckHistory(log.events, rules).count(HistoryRule::kVersions) >= 1);
  }
  SECTION("an evaluation reads the later incarnation before the earlier one's last answer comes") {
    HistoryEvent read = log.events[6];
    read.pin = 3;
    log.events.insert(log.events.begin() + 4, read);
    CHECK(CheckHistory(log.events, rules).total() == 0);
    log.events[4].pin = 0;
    CHECK(CheckHistory(log.events, rules).count(HistoryRule::kVersions) >= 1);
  }
  SECTION("a batch is applied twice in one incarnation") {
    log.Pull(0, 4, 2, {{0, 4}}).incarnation = 6;
    log.Push(0, 4, 3, 0, 3).incarnation = 6;
    CHECK(CheckHistory(log.events, rules).count(HistoryRule::kBatches) == 1);
  }
  SECTION("without the rule a second incarnation is a violation") {
    rules.server_restarts = false;
    CHECK(CheckHistory(log.events, rules).count(HistoryRule::kVersions) >= 1);
  }
}

// ---- rows

// Batch b adds one to key b mod 2, and two to key 7.
std::vector<HistoryRow> RowsOfBatch(uint64_t batch) { return {{0, batch % 2, 1, 1}, {0, 7, 2, 2}}; }

HistoryRules WithRows(HistoryRules rules) {
  rules.rows_of_batch = RowsOfBatch;
  return rules;
}

// Reads of rows in Good(), whose batch b makes version b + 1.
std::vector<HistoryEvent> GoodWithRows() {
  std::vector<HistoryEvent> events = Good();
  const auto read = [&](uint32_t worker, uint64_t clock, uint64_t version, std::vector<HistoryRow> rows) {
    HistoryEvent event;
    event.is_rows = true;
    event.where = absl::StrCat("rows:", events.size() - Good().size());
    event.worker = worker;
    event.worker_incarnation = worker + 10;
    event.clock = clock;
    event.version = version;
    event.incarnation = 5;
    event.rows = std::move(rows);
    events.push_back(event);
  };
  read(0, 0, 0, {{0, 0, 0, 0}, {0, 7, 0, 0}});
  read(0, 1, 1, {{0, 0, 1, 1}, {0, 1, 0, 0}, {0, 7, 2, 2}});
  read(1, 1, 3, {{0, 0, 2, 2}, {0, 1, 1, 1}, {0, 7, 6, 6}});
  read(1, 2, 4, {{0, 1, 2, 2}, {0, 7, 8, 8}});
  read(1, 3, 6, {{0, 0, 3, 3}, {0, 1, 3, 3}, {0, 7, 12, 12}});
  return events;
}

std::string RowsViolatedWith(const std::function<void(HistoryEvent*)>& change,
                             const HistoryRules& rules = Bounded(1)) {
  std::vector<HistoryEvent> events = GoodWithRows();
  change(events.data() + Good().size());
  return Violated(events, WithRows(rules));
}

TEST_CASE("rows: a history as it should be") {
  const HistoryReport report = CheckHistory(GoodWithRows(), WithRows(Bounded(1)));
  INFO(report.ToString());
  CHECK(report.total() == 0);
  CHECK(report.rows == 13);
  HistoryRules async = WithRows({});
  async.mode = Mode::kAsync;
  CHECK(Violated(GoodWithRows(), async).empty());
}

TEST_CASE("rows: they have what the pushes up to their version have added") {
  // One that was lost, one that was applied twice, one of a later version, and the initial values.
  for (const double value : {1.0, 3.0, 0.0}) {
    CHECK(RowsViolatedWith(
              [&](HistoryEvent* rows) { rows[2].rows[0].least = rows[2].rows[0].most = value; }) == "rows");
  }
  CHECK(RowsViolatedWith([](HistoryEvent* rows) { rows[1].rows = rows[2].rows; }) == "rows");
}

TEST_CASE("rows: none is torn, and each is of one shard") {
  CHECK(RowsViolatedWith([](HistoryEvent* rows) { rows[2].rows[2].least = 4; }) == "rows");
  std::vector<HistoryEvent> events = GoodWithRows();
  HistoryEvent other = events.back();
  other.shard = 1;
  other.rows = {{0, 0, 0, 0}};
  other.clock = other.version = 0;
  events.push_back(other);
  CHECK(CheckHistory(events, WithRows(Bounded(1))).count(HistoryRule::kRows) == 1);
}

TEST_CASE("rows: a read is as fresh as a pull at its clock, and a worker's do not go back") {
  CHECK(RowsViolatedWith([](HistoryEvent* rows) { rows[1].clock = 2; }) == "freshness, own pushes");
  CHECK(RowsViolatedWith([](HistoryEvent*) {}, Bounded(0)) == "freshness, watermarks, lead");
  // Of version 6 for clock 1 and of version 4 for clock 2.
  HistoryRules async;
  async.mode = Mode::kAsync;
  CHECK(RowsViolatedWith(
            [](HistoryEvent* rows) {
              rows[2].version = 6;
              rows[2].rows = rows[4].rows;
            },
            async) == "rows");
}

TEST_CASE("rows: where a killed worker's pushes are not in the logs, rows have no less than those that are") {
  HistoryRules rules = WithRows(Bounded(1));
  rules.membership_changes = true;
  std::vector<HistoryEvent> events = GoodWithRows();
  CHECK(Violated(events, rules).empty());
  // The push that made version 4 was not written down.
  events.erase(events.begin() + 8);
  CHECK(CheckHistory(events, rules).count(HistoryRule::kRows) == 0);
  HistoryEvent& last = events.back();
  SECTION("a row lacks a push") {
    last.rows[0].least = last.rows[0].most = 2;
    CHECK(CheckHistory(events, rules).count(HistoryRule::kRows) >= 1);
  }
  SECTION("a row gains less than the pushes between two versions have added") {
    HistoryEvent& before = *(events.end() - 2);
    before.rows[1].least = before.rows[1].most = 11;  // 2 + 2 come after it
    CHECK(CheckHistory(events, rules).count(HistoryRule::kRows) == 1);
  }
}

TEST_CASE("rows in sync: of the step of their clock, each part once") {
  HistoryRules rules;
  rules.mode = Mode::kSync;
  rules.parts = 2;
  Log log;
  for (uint64_t step = 0; step < 2; ++step) {
    for (uint32_t worker = 0; worker < 2; ++worker) {
      log.Pull(worker, step, step);
      log.Push(worker, step, step + 1, 0, 2 * step + worker).part = worker;
    }
  }
  HistoryEvent read = log.events[4];
  read.is_rows = true;
  read.rows = {{0, 0, 1, 1}, {0, 1, 1, 1}, {0, 7, 4, 4}};
  REQUIRE(read.clock == 1);
  log.events.push_back(read);
  CHECK(Violated(log.events, WithRows(rules)).empty());
  log.events.back().rows[2] = {0, 7, 2, 2};
  CHECK(Violated(log.events, WithRows(rules)) == "rows");
  log.events.back().rows[2] = {0, 7, 4, 4};
  log.events.back().clock = 2;
  CHECK(Violated(log.events, WithRows(rules)) == "step");
}

TEST_CASE("a log is read as it was written") {
  std::vector<HistoryEvent> events;
  const std::string push =
      R"({"op":"push","worker":1,"worker_incarnation":7,"shard":2,"clock":4,"part":3,"batch":17,)"
      R"("outcome":"OK","version":10,"incarnation":9,"staleness":1,"t_ns":5})";
  const std::string pull =
      R"({"op":"pull","worker":1,"worker_incarnation":7,"shard":0,"clock":4,"pin":8,)"
      R"("outcome":"STEP_PAST","version":9,"incarnation":3,"clocks":[[0,3],[1,4]],"t_ns":5})";
  REQUIRE(ReadHistory("w", absl::StrCat(push, "\n", pull, "\n"), /*cut=*/false, &events).ok());
  REQUIRE(events.size() == 2);
  CHECK(events[0].is_push);
  CHECK(events[0].where == "w:1");
  CHECK(events[0].worker == 1);
  CHECK(events[0].worker_incarnation == 7);
  CHECK(events[0].shard == 2);
  CHECK(events[0].clock == 4);
  CHECK(events[0].part == 3);
  CHECK(events[0].batch == 17);
  CHECK(events[0].outcome == "OK");
  CHECK(events[0].version == 10);
  CHECK(events[0].incarnation == 9);
  CHECK(events[0].staleness == 1);
  CHECK_FALSE(events[1].is_push);
  CHECK(events[1].where == "w:2");
  CHECK(events[1].pin == 8);
  CHECK(events[1].outcome == "STEP_PAST");
  CHECK(events[1].clocks == Clocks{{0, 3}, {1, 4}});

  const std::string rows =
      R"({"op":"rows","worker":1,"worker_incarnation":7,"shard":0,"clock":4,"version":9,)"
      R"("incarnation":3,"rows":[[2,18446744073709551615,3,4.5]]})";
  REQUIRE(ReadHistory("w", rows + "\n", /*cut=*/false, &events).ok());
  CHECK(events[2].is_rows);
  REQUIRE(events[2].rows.size() == 1);
  CHECK(events[2].rows[0].table == 2);
  CHECK(events[2].rows[0].key == UINT64_MAX);
  CHECK(events[2].rows[0].least == 3);
  CHECK(events[2].rows[0].most == 4.5);
  events.pop_back();

  CHECK(ReadHistory("w", pull, /*cut=*/true, &events).ok());
  CHECK(events.size() == 2);
  CHECK_THAT(std::string(ReadHistory("w", pull, false, &events).message()), StartsWith("w:1: the last line"));
  CHECK_THAT(std::string(ReadHistory("w", "{\"op\":\"drop\"}\n", false, &events).message()),
             StartsWith("w:1: op is none of"));
  CHECK_FALSE(ReadHistory("w", "[]\n", false, &events).ok());
}

}  // namespace
}  // namespace weir
