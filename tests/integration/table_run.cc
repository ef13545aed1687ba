#include "tests/integration/table_run.h"

#include <csignal>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "catch2/catch.hpp"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/manifest.h"
#include "common/codec/floats.h"
#include "common/config/job_config.h"
#include "common/model/key_bucket.h"
#include "common/model/table_digest.h"
#include "common/object_store/object_file_system.h"
#include "common/program/exit_codes.h"
#include "tests/cli/weir_process.h"
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

bool TravelsAsBfloat16(const v1::JobConfig& config) {
  return config.wire().dtype() == v1::WireConfig::TYPE_BF16;
}

// A job in sync, in one loop.
std::vector<ReferenceTable> TrainReference(const v1::JobConfig& config, const std::set<uint64_t>& without,
                                           bool few) {
  const bool bf16 = TravelsAsBfloat16(config);
  std::vector<ReferenceTable> tables;
  for (const v1::TableConfig& of : config.tables()) {
    Table::Options options;
    options.name = of.name();
    options.dim = of.dim();
    options.seed = config.seed();
    options.init = {Initializer::Kind::kNormal, of.init().value()};
    options.optimizer.set_type(of.name() == "users" ? v1::TableOptimizer::KIND_ROWWISE_ADAGRAD
                                                    : v1::TableOptimizer::KIND_ADAM);
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
  return tables;
}

// A file in the midst of the newest checkpoint's chain, which has a base, some deltas, and the checkpoint's
// own delta. nullopt: its chain is shorter.
std::optional<std::string> LinkOf(const std::string& directory) {
  FileSystem& files = AnyStorage();
  const absl::StatusOr<FoundCheckpoint> newest = LatestComplete(files, directory);
  REQUIRE(newest.status() == absl::OkStatus());
  const auto chain = ReadChain(files, newest->folder, newest->manifest);
  REQUIRE(chain.status() == absl::OkStatus());
  const auto parts = FilesOfTable(newest->folder, newest->manifest, *chain, /*shard=*/0, /*index=*/1);
  REQUIRE(parts.status() == absl::OkStatus());
  if (parts->size() <= 2) return std::nullopt;
  const TableFile& link = (*parts)[parts->size() / 2];
  return JoinPath(link.folder, link.table->name());
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

void JobOfTables::Kill(const std::vector<std::string>& tasks) {
  for (const std::string& task : tasks) job[task].Signal(SIGKILL);
  for (const std::string& task : tasks) REQUIRE(job[task].Wait() == 128 + SIGKILL);
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

bool EndsInDeltas(const std::string& directory) { return LinkOf(directory).has_value(); }

DamagedLink::DamagedLink(const std::string& directory) : directory_(directory) {
  FileSystem& files = AnyStorage();
  const std::optional<std::string> link = LinkOf(directory);
  REQUIRE(link.has_value());
  path_ = *link;
  const absl::StatusOr<std::string> read = files.ReadFile(path_, 1 << 20);
  REQUIRE(read.status() == absl::OkStatus());
  bytes_ = *read;
  std::string damaged = bytes_;
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  Write(damaged);
}

void DamagedLink::Write(const std::string& bytes) {
  FileSystem& files = AnyStorage();
  REQUIRE(files.Remove(path_) == absl::OkStatus());
  REQUIRE(files.WriteNew(path_, path_ + ".new", bytes) == absl::OkStatus());
}

void DamagedLink::CheckFound() const {
  using Catch::Contains;
  const WeirResult verified = Weir({"checkpoint", "verify", directory_});
  INFO(verified.output);
  CHECK(verified.code == 1);
  CHECK_THAT(verified.output, Contains(path_ + ": "));
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
  const bool bf16 = TravelsAsBfloat16(config);
  AllRows rows;
  for (const ReferenceTable& table : TrainReference(config, without, few)) {
    for (uint64_t key : AllTableKeys()) {
      const std::vector<float> row = Travelled(table.Read(table.state(), key), bf16);
      rows.insert(rows.end(), row.begin(), row.end());
    }
  }
  return rows;
}

std::string SerialTablesSha256(const std::vector<std::string>& set, const std::set<uint64_t>& without,
                               bool few) {
  const v1::JobConfig config = TableConfigWith(set);
  const std::vector<ReferenceTable> tables = TrainReference(config, without, few);
  std::map<std::string, std::string> digests;
  for (size_t i = 0; i < tables.size(); ++i) {
    std::map<std::pair<uint32_t, uint64_t>, std::vector<float>> rows;  // by bucket and key
    for (const auto& [key, row] : tables[i].state().rows)
      rows[{BucketOfHash(HashKey(key)), key}] = row.values;
    TableDigest digest;
    for (const auto& [place, values] : rows) digest.AddRow(place.second, values);
    digests[config.tables(static_cast<int>(i)).name()] = digest.Finish();
  }
  return TablesSha256(digests);
}

AllRows CountKeys(bool few, uint64_t batches) {
  std::vector<std::map<uint64_t, float>> counts(2);
  for (uint32_t table = 0; table < counts.size(); ++table) {
    for (uint64_t batch = 0; batch < batches; ++batch) {
      for (uint64_t key : TableKeysOf(batch, table, few)) ++counts[table][key];
    }
  }
  return RowsOfCounts(std::move(counts));
}

AllRows RowsOfCounts(std::vector<std::map<uint64_t, float>> counts) {
  const v1::JobConfig config = TableConfigWith({CountingTables()});
  AllRows rows;
  for (size_t table = 0; table < counts.size(); ++table) {
    for (uint64_t key : AllTableKeys()) {
      rows.insert(rows.end(), config.tables(static_cast<int>(table)).dim(), counts[table][key]);
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
