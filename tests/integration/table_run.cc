#include "tests/integration/table_run.h"

#include <csignal>
#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "catch2/catch.hpp"
#include "common/codec/bfloat16.h"
#include "common/config/job_config.h"
#include "tests/integration/transport.h"
#include "tests/ps_server/table/reference_table.h"

namespace weir {
namespace {

// What becomes of values on the way to a server, or back.
std::vector<float> Travelled(std::vector<float> values, bool as_bfloat16) {
  if (!as_bfloat16) return values;
  std::vector<uint16_t> halves(values.size());
  ToBfloat16(values.data(), halves.data(), values.size());
  FromBfloat16(halves.data(), values.data(), values.size());
  return values;
}

}  // namespace

JobOfTables::JobOfTables(const TableRun& of)
    : run(of),
      job({.ps = of.servers,
           .workers = of.workers,
           .evaluator = true,
           .config = folder.Write("job.json", TableJob()),
           .set = of.set}) {}

void JobOfTables::StartAll() {
  for (uint32_t i = 0; i < run.servers; ++i) job.Start(absl::StrCat("ps:", i));
  StartProgram("evaluator", 0, "-");
  job.WaitForTask("evaluator:0", "waiting");
  for (uint32_t i = 0; i < run.workers; ++i) {
    StartProgram("worker", i, i < run.behaviours.size() ? run.behaviours[i] : "-");
  }
}

void JobOfTables::StartProgram(const std::string& role, uint32_t rank, const std::string& behaviour) {
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

void JobOfTables::KillAndRestart(const std::string& server) {
  job[server].Signal(SIGKILL);
  REQUIRE(job[server].Wait() == 128 + SIGKILL);
  job.Start(server);
}

void JobOfTables::WaitForStep(uint64_t step) {
  const v1::ClusterStatus status = job.WaitForStatus(absl::StrCat("step ", step), [step](const auto& now) {
    return now.state() == v1::RUNNING && now.step() >= step;
  });
  REQUIRE(status.step() < status.total_steps());
}

AllRows JobOfTables::Rows() const {
  const std::string bytes = ReadWholeFile(folder.path("rows"));
  AllRows rows(bytes.size() / sizeof(float));
  std::memcpy(rows.data(), bytes.data(), bytes.size());
  return rows;
}

std::string JobOfTables::WorkerLogs() {
  std::string logs;
  for (uint32_t i = 0; i < run.workers; ++i) logs += job[absl::StrCat("worker:", i)].log();
  return logs;
}

std::vector<HistoryEvent> JobOfTables::Histories() const {
  std::vector<HistoryEvent> events;
  for (uint32_t i = 0; i < run.workers; ++i) {
    for (const std::string of : {"history", "reads"}) {
      const std::string name = absl::StrCat("rows.worker:", i, ".", of);
      const absl::Status read = ReadHistory(name, ReadWholeFile(folder.path(name)), /*cut=*/false, &events);
      INFO(read.ToString());
      REQUIRE(read.ok());
    }
  }
  return events;
}

v1::JobConfig TableConfigWith(const std::vector<std::string>& set) {
  const absl::StatusOr<v1::JobConfig> config =
      ParseJobConfig(TableJob(), "the test's job", With(CommonOverrides(), set));
  INFO(config.status());
  REQUIRE(config.ok());
  return *config;
}

AllRows TrainTablesSerially(const std::vector<std::string>& set, const std::set<uint64_t>& without,
                            bool few) {
  const v1::JobConfig config = TableConfigWith(set);
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
        if (without.count(batch) > 0) continue;
        const std::vector<uint64_t> occurrences = TableKeysOf(batch, table, few);
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

AllRows CountKeys() {
  const v1::JobConfig config = TableConfigWith({CountingTables()});
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

std::vector<HistoryRow> CountsOfBatch(uint64_t batch) {
  std::vector<HistoryRow> rows;
  for (uint32_t table = 0; table < 2; ++table) {
    for (uint64_t key : TableKeysOf(batch, table)) rows.push_back({table, key, 1, 1});
  }
  return rows;
}

}  // namespace weir
