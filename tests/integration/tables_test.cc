// Embedding tables in jobs of real processes: what all rows are at the end.
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "catch2/catch.hpp"
#include "common/codec/bfloat16.h"
#include "common/config/job_config.h"
#include "common/program/exit_codes.h"
#include "nlohmann/json.hpp"
#include "tests/cli/weir_process.h"
#include "tests/integration/processes.h"
#include "tests/integration/table_job.h"
#include "tests/integration/transport.h"
#include "tests/ps_server/table/reference_table.h"

namespace weir {
namespace {

using Catch::Contains;
using AllRows = std::vector<float>;  // of all tables and keys

struct TableRun {
  uint32_t servers = 2, workers = 2;
  // Beside the transport under test.
  std::vector<std::string> set;
  // By worker.
  std::vector<std::string> behaviours;
};

// Such a job, with its files.
struct JobOfTables {
  explicit JobOfTables(const TableRun& of)
      : run(of),
        job({.ps = of.servers,
             .workers = of.workers,
             .evaluator = true,
             .config = folder.Write("job.json", TableJob()),
             .set = of.set}) {}

  void StartAll() {
    for (uint32_t i = 0; i < run.servers; ++i) job.Start(absl::StrCat("ps:", i));
    StartProgram("evaluator", 0, "-");
    job.WaitForTask("evaluator:0", "waiting");
    for (uint32_t i = 0; i < run.workers; ++i) {
      StartProgram("worker", i, i < run.behaviours.size() ? run.behaviours[i] : "-");
    }
  }
  void StartProgram(const std::string& role, uint32_t rank, const std::string& behaviour) {
    std::vector<std::string> args = {"tests/integration/table_worker",
                                     role,
                                     std::to_string(rank),
                                     folder.path("job.json"),
                                     absl::StrJoin(job.ps_addresses(), ","),
                                     folder.path("rows"),
                                     behaviour};
    for (const std::string& set : With(CommonOverrides(), run.set)) args.push_back(set);
    job.StartWith(absl::StrCat(role, ":", rank), args, {});
  }
  // What the evaluator read.
  AllRows Rows() const {
    const std::string bytes = ReadWholeFile(folder.path("rows"));
    AllRows rows(bytes.size() / sizeof(float));
    std::memcpy(rows.data(), bytes.data(), bytes.size());
    return rows;
  }
  std::string WorkerLogs() {
    std::string logs;
    for (uint32_t i = 0; i < run.workers; ++i) logs += job[absl::StrCat("worker:", i)].log();
    return logs;
  }

  const TableRun run;
  const TestFolder folder;
  TestJob job;
};

v1::JobConfig ConfigWith(const std::vector<std::string>& set) {
  const absl::StatusOr<v1::JobConfig> config =
      ParseJobConfig(TableJob(), "the test's job", With(CommonOverrides(), set));
  INFO(config.status());
  REQUIRE(config.ok());
  return *config;
}

// What becomes of values on the way to a server, or back.
std::vector<float> Travelled(std::vector<float> values, bool as_bfloat16) {
  if (!as_bfloat16) return values;
  std::vector<uint16_t> halves(values.size());
  ToBfloat16(values.data(), halves.data(), values.size());
  FromBfloat16(halves.data(), values.data(), values.size());
  return values;
}

// The rows that a reader finds after a sync job, in one loop. `without`: a batch that does not count.
AllRows TrainTablesSerially(const std::vector<std::string>& set,
                            std::optional<uint64_t> without = std::nullopt) {
  const v1::JobConfig config = ConfigWith(set);
  const bool bf16 = config.wire().dtype() == v1::WireConfig::TYPE_BF16;
  std::vector<ReferenceTable> tables;
  for (const v1::TableConfig& of : config.tables()) {
    Table::Options options;
    options.name = of.name();
    options.dim = of.dim();
    options.seed = config.seed();
    options.init = {Initializer::Kind::kNormal, of.init().value()};
    options.optimizer.kind =
        of.name() == "users" ? RowOptimizerConfig::Kind::kRowWiseAdagrad : RowOptimizerConfig::Kind::kAdam;
    tables.emplace_back(options);
  }
  for (uint64_t step = 0; step < kTableBatches / kTableParts; ++step) {
    for (uint32_t table = 0; table < tables.size(); ++table) {
      const size_t dim = config.tables(static_cast<int>(table)).dim();
      std::vector<std::vector<uint64_t>> keys(kTableParts);
      std::vector<std::vector<float>> gradients(kTableParts);
      std::vector<Table::Part> parts;
      for (uint32_t part = 0; part < kTableParts; ++part) {
        const uint64_t batch = step * kTableParts + part;
        if (batch == without) continue;
        const std::vector<uint64_t> occurrences = TableKeysOf(batch, table);
        std::vector<float> read;
        for (uint64_t key : occurrences) {
          const std::vector<float> row = Travelled(tables[table].Read(tables[table].state(), key), bf16);
          read.insert(read.end(), row.begin(), row.end());
        }
        const std::vector<float> gradient = TableGradientOf(batch, table, read);
        std::map<uint64_t, std::vector<float>> sums;
        for (size_t i = 0; i < occurrences.size(); ++i) {
          std::vector<float>& sum = sums[occurrences[i]];
          sum.resize(dim);
          for (size_t column = 0; column < dim; ++column) sum[column] += gradient[i * dim + column];
        }
        for (const auto& [key, sum] : sums) {
          keys[part].push_back(key);
          const std::vector<float> pushed = Travelled(sum, bf16);
          gradients[part].insert(gradients[part].end(), pushed.begin(), pushed.end());
        }
        parts.push_back({keys[part], gradients[part].data(), kTableBatchSize});
      }
      tables[table].Update(parts, config.tables(static_cast<int>(table)).optimizer().learning_rate());
    }
  }
  AllRows rows;
  for (const ReferenceTable& table : tables) {
    for (uint64_t key : AllTableKeys()) {
      const std::vector<float> row = Travelled(table.Read(table.state(), key), bf16);
      rows.insert(rows.end(), row.begin(), row.end());
    }
  }
  return rows;
}

// The rows of a job that counts.
AllRows CountKeys() {
  const v1::JobConfig config = ConfigWith({CountingTables()});
  AllRows rows;
  for (uint32_t table = 0; table < 2; ++table) {
    std::map<uint64_t, float> counts;
    for (uint64_t batch = 0; batch < kTableBatches; ++batch) {
      for (uint64_t key : TableKeysOf(batch, table)) ++counts[key];
    }
    for (uint64_t key : AllTableKeys()) {
      rows.insert(rows.end(), config.tables(static_cast<int>(table)).dim(), counts[key]);
    }
  }
  return rows;
}

// ---- the same bits

void CheckSync(const TableRun& run) {
  JobOfTables t(run);
  t.StartAll();
  t.job.ExpectAllExit(0);
  CHECK((t.Rows() == TrainTablesSerially(run.set)));
}

TEST_CASE("sync: all rows have the bits of a serial loop: 1 server, 1 worker") { CheckSync({1, 1, {}, {}}); }
TEST_CASE("sync: all rows have the bits of a serial loop: 1 server, 3 workers", "[transports]") {
  CheckSync({1, 3, {}, {}});
}
TEST_CASE("sync: all rows have the bits of a serial loop: 2 servers, 2 workers", "[transports]") {
  CheckSync({2, 2, {}, {}});
}
TEST_CASE("sync: all rows have the bits of a serial loop: 3 servers, 1 worker") { CheckSync({3, 1, {}, {}}); }
TEST_CASE("sync: all rows have the bits of a serial loop: 3 servers, 3 workers", "[transports]") {
  CheckSync({3, 3, {}, {"both", "-", "both"}});
}
TEST_CASE("sync: all rows have the bits of a serial loop: they take many messages", "[transports]") {
  CheckSync({2, 2, {LongRows(), "wire.chunk_kib=256", "wire.chunks_in_flight=3"}, {"both", "-"}});
}
TEST_CASE("sync: all rows have the bits of a serial loop: in bfloat16 on the wire", "[transports]") {
  CheckSync({2, 2, {"wire.dtype=bf16"}, {"both", "-"}});
}

TEST_CASE("sync: all rows have the bits of a serial loop when a worker is killed", "[transports]") {
  JobOfTables t({2, 2, {"cluster.min_workers=1", "cluster.lease_seconds=3"}, {"-", "dies"}});
  t.StartAll();
  t.job.ExpectExit("worker:1", 128 + 9);
  for (const char* task : {"ps:0", "ps:1", "worker:0", "evaluator:0"}) t.job.ExpectExit(task, 0);
  CHECK((t.Rows() == TrainTablesSerially({})));
}

TEST_CASE(
    "sync: a job that goes on from its checkpoint on other servers has the bits of one that never stopped") {
  const TestFolder saved;
  const std::string checkpoint =
      absl::StrCat("checkpoint={\"directory\": \"", saved.path("checkpoints"), "\"}");
  // Half of the work.
  JobOfTables first({2, 2, {checkpoint, "train.examples=48"}, {}});
  first.StartAll();
  first.job.ExpectAllExit(0);
  const AllRows all = TrainTablesSerially({});
  CHECK((first.Rows() != all));
  JobOfTables second({3, 1, {checkpoint}, {}});
  second.StartAll();
  second.job.ExpectAllExit(0);
  CHECK((second.Rows() == all));
}

// ---- every update counts once

void CheckCounts(const TableRun& run) {
  JobOfTables t(run);
  t.StartAll();
  t.job.ExpectAllExit(0);
  CHECK((t.Rows() == CountKeys()));
}

TEST_CASE("bounded: every update of every row counts", "[transports]") {
  CheckCounts({2,
               3,
               {"consistency={\"mode\": \"bounded\", \"staleness\": 1}", CountingTables()},
               {"count", "count", "count"}});
}
TEST_CASE("async: every update of every row counts", "[transports]") {
  CheckCounts({3, 2, {"consistency={\"mode\": \"async\"}", CountingTables()}, {"count", "count"}});
}
TEST_CASE("async: every update of every row counts when a worker is killed") {
  JobOfTables t({2,
                 2,
                 {"consistency={\"mode\": \"async\"}", "cluster.min_workers=1", "cluster.lease_seconds=3",
                  CountingTables()},
                 {"count", "count,dies"}});
  t.StartAll();
  t.job.ExpectExit("worker:1", 128 + 9);
  for (const char* task : {"ps:0", "ps:1", "worker:0", "evaluator:0"}) t.job.ExpectExit(task, 0);
  CHECK((t.Rows() == CountKeys()));
}

// ---- what tools see

nlohmann::json Table(std::vector<std::string> command) {
  command.insert(command.begin(), "table");
  command.push_back("--json");
  const WeirResult result = Weir(command);
  INFO(result.output);
  REQUIRE(result.code == 0);
  return nlohmann::json::parse(result.output);
}

TEST_CASE("weir table shows the rows of a running job, and those of its checkpoint") {
  const TestFolder saved;
  JobOfTables t({2,
                 1,
                 {"consistency={\"mode\": \"async\"}", CountingTables(),
                  absl::StrCat("checkpoint={\"directory\": \"", saved.path("checkpoints"), "\"}")},
                 {"count,waits"}});
  const std::string go = t.folder.path("rows.go");
  REQUIRE(mkfifo(go.c_str(), 0600) == 0);
  t.StartAll();
  std::map<uint64_t, float> counts;
  for (uint64_t batch = 0; batch < kPushesBeforeWait; ++batch) {
    for (uint64_t key : TableKeysOf(batch, 1)) ++counts[key];
  }
  const v1::ClusterStatus status =
      t.job.WaitForStatus("rows of four pushes", [&](const v1::ClusterStatus& s) {
        return s.tables_size() == 2 && s.tables(1).all().rows() == counts.size();
      });
  CHECK(status.tables(1).all().admitted() == counts.size());
  const std::string job = "--address=" + t.job.address("ps:0");
  const nlohmann::json stats = Table({"stats", "items/deep", job});
  CHECK(stats[0]["all"]["rows"] == counts.size());
  CHECK(stats[0]["shards"].size() == 2);

  std::vector<std::string> get = {"get", "items/deep"};
  for (uint64_t key : AllTableKeys()) get.push_back(std::to_string(key));
  get.push_back(job);
  const nlohmann::json rows = Table(get)["rows"];
  REQUIRE(rows.size() == AllTableKeys().size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const uint64_t key = AllTableKeys()[i];
    CAPTURE(key);
    CHECK(rows[i]["key"] == key);
    CHECK(rows[i]["exists"] == (counts.count(key) > 0));
    CHECK(rows[i]["version"] == kPushesBeforeWait);
    CHECK(rows[i]["values"].get<std::vector<float>>() == std::vector<float>(16, counts[key]));
  }
  const WeirResult none = Weir({"table", "get", "item", "1", job});
  CHECK(none.code == kExitConfig);

  std::ofstream(go) << "\n";
  t.job.ExpectAllExit(0);
  get.back() = "--checkpoint=" + saved.path("checkpoints");
  const nlohmann::json kept = Table(get)["rows"];
  const AllRows all = CountKeys();
  for (size_t i = 0; i < kept.size(); ++i) {
    // The last rows are those of this table.
    const float value = all[all.size() - (kept.size() - i) * 16];
    CHECK(kept[i]["exists"] == (value != 0));
    if (value != 0) CHECK(kept[i]["values"].get<std::vector<float>>() == std::vector<float>(16, value));
  }
}

// ---- what is not finite

std::string Spoilt() {
  return absl::StrCat("the gradient of table 'items/deep', key ",
                      TableKeysOf(kSpoiltBatch, kSpoiltTable)[kSpoiltKey], ", column ", kSpoiltColumn,
                      " is NaN");
}

TEST_CASE("a NaN in a row: with reject the step goes without that part") {
  JobOfTables t({2, 2, {"consistency.on_nonfinite=reject"}, {"nan", "nan"}});
  t.StartAll();
  t.job.ExpectAllExit(0);
  CHECK_THAT(t.WorkerLogs(),
             Contains("a push is refused, and done without an update: worker ") && Contains(Spoilt()));
  CHECK((t.Rows() == TrainTablesSerially({}, kSpoiltBatch)));
}

TEST_CASE("a NaN in a row: with stop it ends every task, by name") {
  JobOfTables t({2, 2, {"consistency.on_nonfinite=stop"}, {"nan", "nan"}});
  t.StartAll();
  for (const char* task : {"ps:0", "ps:1"}) {
    t.job.ExpectExit(task, kExitInternal, kEndLimit);
    CHECK_THAT(t.job[task].log(), Contains("training diverged: worker ") && Contains(Spoilt()));
  }
  for (const char* task : {"worker:0", "worker:1", "evaluator:0"}) {
    t.job.ExpectExit(task, 1);
    CHECK_THAT(t.job[task].log(), Contains(Spoilt()));
  }
}

}  // namespace
}  // namespace weir
