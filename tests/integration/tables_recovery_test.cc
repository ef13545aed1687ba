// Jobs with embedding tables whose servers are killed with SIGKILL and come back from the checkpoint, and
// jobs whose steps go without late parts. Checks the rows at the end, and what workers read meanwhile.
#include <sys/stat.h>

#include <csignal>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/model/key_bucket.h"
#include "common/protocol/part_assignment.h"
#include "nlohmann/json.hpp"
#include "tests/cli/weir_process.h"
#include "tests/integration/applied_batches.h"
#include "tests/integration/table_run.h"

namespace weir {
namespace {

std::vector<std::string> Saved(const TestFolder& folder, const std::string& more) {
  return {absl::StrCat("checkpoint={\"directory\": \"", folder.path("runs"), "\"", more, "}"),
          "cluster.server_wait_seconds=30"};
}

void Finish(JobOfTables& t, const std::vector<std::string>& victims) {
  t.StartAll();
  for (size_t kill = 0; kill < victims.size(); ++kill) {
    t.WaitForStep(2 + 3 * kill);
    t.KillAndRestart(victims[kill]);
  }
  t.job.ExpectAllExit(0);
}

TEST_CASE("sync: after kills of the servers all rows have the bits of a serial loop") {
  const TestFolder folder;
  JobOfTables t({2, 2, Saved(folder, ", \"every_steps\": 1"), {"slow,both", "slow"}});
  Finish(t, {"ps:1", "ps:0", "ps:1"});
  CHECK(t.job.Summary()["recoveries"] >= 1);
  CHECK((t.Rows() == TrainTablesSerially({})));
}

TEST_CASE(
    "sync, tables async: after kills of servers and of a worker every update of every row counts once") {
  const TestFolder folder;
  std::vector<std::string> set = Saved(folder, ", \"every_seconds\": 0.3");
  for (const std::string& more :
       {std::string("consistency.tables=async"), CountingTables(), std::string("cluster.min_workers=1"),
        std::string("cluster.lease_seconds=3")})
    set.push_back(more);
  // Parts of a step come 0.2 s apart, so a checkpoint may have the rows of some and not of others.
  JobOfTables t({2, 2, set, {"slow,count", "slow,count,dies"}});
  t.StartAll();
  t.job.WaitForStatus("rows on arrival", [](const auto& now) { return now.tables_async(); });
  t.job.ExpectExit("worker:1", 128 + SIGKILL);
  t.StartProgram("worker", 1, "slow,count");
  const std::vector<std::string> victims = {"ps:1", "ps:0", "ps:1"};
  for (size_t kill = 0; kill < victims.size(); ++kill) {
    t.WaitForStep(3 + 2 * kill);
    t.KillAndRestart(victims[kill]);
  }
  t.job.ExpectAllExit(0);
  CHECK(t.job.Summary()["recoveries"] >= 1);
  CHECK((t.Rows() == CountKeys()));
}

// A job that counts, with rows on arrival, on two servers. Its checkpoint is of the midst of a step: of the
// four parts all servers have the rows of two, and no dense values take effect before the others come.
class SavedAmidStep {
 public:
  SavedAmidStep() : job_({2, 2, set_, {"count", "count,waits"}}) {
    const std::string go = job_.folder.path("rows.go");
    REQUIRE(mkfifo(go.c_str(), 0600) == 0);
    job_.StartAll();
    const std::vector<uint64_t> rows = RowsAmidStep();
    job_.job.WaitForStatus("rows of half of a step", [&](const v1::ClusterStatus& now) {
      return now.tables_size() == 2 && now.tables(0).all().rows() == rows[0] &&
             now.tables(1).all().rows() == rows[1];
    });
    const WeirResult taken = Weir({"checkpoint", "take", "--address=" + job_.job.address("ps:0")});
    INFO(taken.output);
    REQUIRE(taken.code == 0);
  }

  const std::vector<std::string>& set() const { return set_; }
  JobOfTables& job() { return job_; }
  // Lets the worker that waits go on.
  void GoOn() { std::ofstream(job_.folder.path("rows.go")) << "\n"; }

 private:
  // By table.
  static std::vector<uint64_t> RowsAmidStep() {
    std::vector<uint64_t> rows;
    for (uint32_t table = 0; table < 2; ++table) {
      std::set<uint64_t> keys;
      for (uint64_t batch = 0; batch < kStep * kTableParts + kTableParts; ++batch) {
        const bool waits = PartOwners({0, 0}, kTableParts).OwnerOf(batch % kTableParts) == 1;
        if (batch / kTableParts == kStep && waits) continue;
        for (uint64_t key : TableKeysOf(batch, table)) keys.insert(key);
      }
      rows.push_back(keys.size());
    }
    return rows;
  }

  // The worker that waits has made its parts of the steps before.
  static constexpr uint64_t kStep = kPushesBeforeWait / (kTableParts / 2);
  const TestFolder folder_;
  const std::vector<std::string> set_ =
      With(Saved(folder_, ", \"every_steps\": 1000"), {"consistency.tables=async", CountingTables()});
  JobOfTables job_;
};

TEST_CASE("sync, tables async: rows that a checkpoint has of an open step count once when a server is lost") {
  SavedAmidStep saved;
  saved.job().KillAndRestart("ps:1");
  saved.GoOn();
  saved.job().job.ExpectAllExit(0);
  CHECK(saved.job().job.Summary()["recoveries"] == 1);
  CHECK((saved.job().Rows() == CountKeys()));
}

TEST_CASE("sync, tables async: rows that a checkpoint has of an open step count once on other servers") {
  SavedAmidStep saved;
  saved.job().Kill({"worker:0", "worker:1", "ps:0", "ps:1"});
  JobOfTables second({3, 2, saved.set(), {"count", "count"}});
  second.StartAll();
  second.job.ExpectAllExit(0);
  CHECK((second.Rows() == CountKeys()));
}

// ---- checkpoints of changes alone

// A checkpoint after each step, almost all of which have changes alone.
std::vector<std::string> Counting(const TestFolder& folder, const std::vector<std::string>& more = {}) {
  return With(With(Saved(folder, ", \"every_steps\": 1"),
                   {"consistency={\"mode\": \"async\"}", "server.durability=log", CountingTables()}),
              more);
}

// What the tables have of a checkpoint whose shards say which batches they have applied.
AllRows CountApplied(const std::string& directory) {
  FileSystem& files = FileSystem::Posix();
  const auto newest = LatestComplete(files, directory);
  REQUIRE(newest.status() == absl::OkStatus());
  const auto reader = CheckpointReader::Open(files, newest->folder);
  REQUIRE(reader.status() == absl::OkStatus());
  std::vector<std::map<uint64_t, float>> counts(2);  // by table
  const absl::Status read = ForEachApplied(*reader, [&](uint32_t shard, uint64_t batch) {
    for (uint32_t table = 0; table < 2; ++table) {
      for (uint64_t key : TableKeysOf(batch, table, /*few=*/true)) {
        if (ShardOfKey(key, reader->manifest().num_shards()) == shard) ++counts[table][key];
      }
    }
  });
  REQUIRE(read == absl::OkStatus());
  return RowsOfCounts(counts);
}

TEST_CASE(
    "async with the log: servers are lost after some checkpoints of changes, and have all that they "
    "applied") {
  std::optional<TestFolder> made;
  TableRun same;
  // A busy machine may begin a new chain between the message and the kills: then all begins anew.
  do {
    made.emplace();
    same = {2, 2, Counting(*made, {"train.examples=72"}), {"count,few,slow", "count,few,slow"}};
    JobOfTables t(same);
    t.StartAll();
    t.job["ps:0"].WaitForLog("on 2 earlier checkpoints");
    t.Kill({"ps:0", "ps:1", "worker:0", "worker:1"});
  } while (!EndsInDeltas(made->path("runs")));
  const TestFolder& folder = *made;
  const std::string runs = folder.path("runs");
  DamagedLink link(runs);
  link.CheckFound();
  link.Repair();
  JobOfTables second(same);
  second.StartAll();
  second.WaitForStep(8);
  second.KillAndRestart("ps:1");
  second.job.ExpectAllExit(0);
  CHECK_THAT(second.job["ps:1"].log(), Catch::Contains(" records of the log"));
  const nlohmann::json summary = second.job.Summary();
  CHECK(summary["lost_pushes"] == 0);
  const AllRows rows = second.Rows();
  CHECK((rows == CountApplied(runs)));
  const RunResult replay = RunToEnd({"ps_server/ps_server", "--replay", runs});
  INFO(replay.output);
  CHECK(replay.status == 0);
  CHECK_THAT(replay.output, Catch::Contains(summary["tables_sha256"].get<std::string>()));

  // The rest of the batches, on other servers.
  JobOfTables third({3, 1, Counting(folder), {"count,few"}});
  third.StartAll();
  third.job.ExpectAllExit(0);
  const AllRows all = CountKeys(/*few=*/true), before = CountKeys(/*few=*/true, /*batches=*/36);
  AllRows expected = rows;
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += all[i] - before[i];
  CHECK((third.Rows() == expected));
}

// ---- late parts

// Batches whose push was committed, as the workers were told.
std::set<uint64_t> Committed(const std::vector<HistoryEvent>& events) {
  std::set<uint64_t> committed;
  for (const HistoryEvent& event : events) {
    if (event.is_push && event.outcome == "OK") committed.insert(event.batch);
  }
  return committed;
}

TEST_CASE(
    "sync with backup_workers: the rows of late parts do not count, and those of a step's parts all do") {
  JobOfTables t({2, 2, {"consistency.backup_workers=1"}, {"history", "history,slow"}});
  t.StartAll();
  t.job.ExpectAllExit(0);
  const std::set<uint64_t> committed = Committed(t.Histories());
  std::set<uint64_t> late;
  std::map<uint64_t, int> parts;
  for (uint64_t batch = 0; batch < kTableBatches; ++batch) {
    parts[batch / kTableParts] += committed.count(batch) > 0;
    if (committed.count(batch) == 0) late.insert(batch);
  }
  CHECK(!late.empty());
  for (const auto& [step, count] : parts) CHECK(count >= static_cast<int>(kTableParts) - 1);
  CHECK((t.Rows() == TrainTablesSerially({}, late)));
}

// ---- what workers see meanwhile

void CheckHistoryOf(const std::string& consistency, HistoryRules rules) {
  JobOfTables t({2,
                 3,
                 {"consistency=" + consistency, CountingTables()},
                 {"count,history", "count,history,slow", "count,history"}});
  t.StartAll();
  t.job.ExpectAllExit(0);
  std::vector<HistoryEvent> events = t.Histories();
  // Each worker has one incarnation here, which the reads do not know.
  std::map<uint32_t, uint64_t> incarnations;
  for (const HistoryEvent& event : events) {
    if (!event.is_rows) incarnations[event.worker] = event.worker_incarnation;
  }
  for (HistoryEvent& event : events) event.worker_incarnation = incarnations[event.worker];
  rules.rows_of_batch = CountsOfBatch;
  const HistoryReport report = CheckHistory(events, rules);
  INFO(report.ToString());
  // Which versions a pull of rows alone reads is not in the client's history.
  CHECK(report.count(HistoryRule::kRows) == 0);
  CHECK(report.count(HistoryRule::kFreshness) == 0);
  CHECK(report.count(HistoryRule::kOwnPushes) == 0);
  CHECK(report.rows > 1000);
}

TEST_CASE(
    "bounded: every read of a row has the pushes up to its version, and is as fresh as the bound wants") {
  HistoryRules rules;
  rules.mode = HistoryRules::Mode::kBounded;
  rules.staleness = 1;
  CheckHistoryOf(R"({"mode": "bounded", "staleness": 1})", rules);
}

TEST_CASE("async: every read of a row has the pushes up to its version") {
  HistoryRules rules;
  rules.mode = HistoryRules::Mode::kAsync;
  CheckHistoryOf(R"({"mode": "async"})", rules);
}

}  // namespace
}  // namespace weir
