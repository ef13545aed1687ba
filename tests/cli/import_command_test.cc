// `weir import` of a file with embedding tables, as `weir export` writes it; of dense models see
// tests/python/import_weights_test.py.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/checkpoint_writer.h"
#include "common/program/exit_codes.h"
#include "tests/cli/weir_process.h"
#include "tests/common/checkpoint/checkpoint_fixture.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kElements = 20;

int Import(const std::string& file, const std::string& directory, const std::string& like) {
  std::vector<std::string> args = {"import", file, directory};
  if (!like.empty()) args.push_back("--like=" + like);
  return Weir(args).code;
}

std::string NewFolder() {
  std::string name = fs::path(std::getenv("TEST_TMPDIR")) / "import-XXXXXX";
  REQUIRE(mkdtemp(name.data()) != nullptr);
  return name;
}

// The job's values are random bits, and weights must be finite.
bool IsFinite(const StoredJob& job) {
  const auto finite = [](float value) { return std::isfinite(value); };
  const std::vector<float> weights = job.Array(0, 0, 1);
  bool all = std::all_of(weights.begin(), weights.end(), finite);
  for (size_t table = 0; table < job.tables.size(); ++table) {
    for (const auto& [key, row] : job.Entries(table, /*counters=*/false)) {
      all = all && std::all_of(row.values.begin(), row.values.end(), finite);
    }
  }
  return all;
}

struct Exported {
  explicit Exported(std::vector<v1::TableConfig> tables) {
    job.model = TestModel(kElements);
    job.slots = {"momentum"};
    job.tables = std::move(tables);
    job.rows = 9;
    while (!IsFinite(job)) ++job.salt;
    REQUIRE(job.Write(FileSystem::Posix(), folder, 12, 2).ok());
    const auto reader = CheckpointReader::Open(FileSystem::Posix(), CheckpointFolder(folder, 12));
    REQUIRE(reader.ok());
    REQUIRE(reader->Export(file).ok());
  }
  StoredJob job;
  const std::string folder = NewFolder(), file = folder + "/out.safetensors";
};

CheckpointReader Imported(const std::string& folder) {
  auto reader = CheckpointReader::Open(FileSystem::Posix(), CheckpointFolder(folder, 0));
  INFO(reader.status());
  REQUIRE(reader.ok());
  CHECK(reader->Verify() == absl::OkStatus());
  return *std::move(reader);
}

// The rows of a table on shards of this number, by key.
using Rows = std::map<uint64_t, std::vector<float>>;
Rows RowsIn(const CheckpointReader& reader, size_t table, uint32_t shards) {
  Rows rows;
  const size_t dim = reader.TableAt(table).dim();
  CheckpointReader::TableTarget target;
  target.rows = [&](const TableEntries& entries) {
    for (size_t i = 0; i < entries.keys.size(); ++i) {
      const auto first = entries.values.begin() + static_cast<ptrdiff_t>(i * dim);
      rows[entries.keys[i]].assign(first, first + static_cast<ptrdiff_t>(dim));
    }
    return absl::OkStatus();
  };
  for (uint32_t shard = 0; shard < shards; ++shard) {
    CHECK(reader.LoadTable(table, shard, shards, target) == absl::OkStatus());
  }
  return rows;
}

TEST_CASE("an import has the tables that an export has, for any number of shards") {
  const Exported from({TestTable("clicks", 4), TestTable("shown", 1)});
  for (const std::string& like : {std::string(), from.folder}) {
    const std::string to = NewFolder();
    REQUIRE(Import(from.file, to, like) == kExitOk);
    const CheckpointReader reader = Imported(to);
    CHECK(reader.NumTables() == 2);
    CHECK(reader.RowsOf(0) == from.job.rows);
    for (size_t table = 0; table < 2; ++table) {
      Rows expected;
      for (const auto& [key, row] : from.job.Entries(table, /*counters=*/false)) expected[key] = row.values;
      for (const uint32_t shards : {1, 3}) CHECK(RowsIn(reader, table, shards) == expected);
    }
    CHECK(reader.CheckTables(from.job.tables, /*weights_only=*/true).ok());
    if (like.empty()) continue;  // the file does not say which tensor is a buffer
    std::vector<float> weights(kElements);
    REQUIRE(reader.LoadWeights(from.job.model, 0, 1, absl::MakeSpan(weights)).ok());
    CHECK(weights == from.job.Array(0, 0, 1));
  }
}

TEST_CASE("a table without rows, and keys of all 64 bits") {
  const std::string folder = NewFolder(), file = folder + "/out.safetensors", to = NewFolder();
  ModelSpec model;
  TensorSpec& tensor = model.tensors.emplace_back();
  tensor.name = "w";
  tensor.shape = {2};
  const uint64_t most = ~uint64_t{0};
  const std::vector<float> weights = {1, 2};
  REQUIRE(WriteInitialWeights(FileSystem::Posix(), folder, model, weights,
                              {{"empty", 3, {}, {}}, {"full", 2, {most, 0, 7}, {1, 2, 3, 4, 5, 6}}})
              .ok());
  REQUIRE(Imported(folder).Export(file).ok());
  REQUIRE(Import(file, to, "") == kExitOk);
  const CheckpointReader reader = Imported(to);
  REQUIRE(reader.NumTables() == 2);
  CHECK(reader.RowsOf(0) == 0);
  CHECK(reader.TableAt(0).dim() == 3);
  CHECK(RowsIn(reader, 1, 2) == Rows{{most, {1, 2}}, {0, {3, 4}}, {7, {5, 6}}});
}

TEST_CASE("tables that do not fit are refused, and nothing is written") {
  const Exported from({TestTable("clicks", 4)});
  for (const v1::TableConfig& other : {TestTable("clicks", 5), TestTable("shown", 4)}) {
    const Exported like({other});
    const std::string to = NewFolder();
    CHECK(Import(from.file, to, like.folder) == kExitConfig);
    CHECK(fs::is_empty(to));
  }
  // The like has no table, so that the columns are tensors that it has not.
  const std::string to = NewFolder();
  CHECK(Import(from.file, to, Exported({}).folder) == kExitConfig);
  CHECK(fs::is_empty(to));
  ModelSpec model;
  TensorSpec& tensor = model.tensors.emplace_back();
  tensor.name = "w";
  tensor.shape = {1};
  const std::vector<float> weights = {1};
  const absl::Status twice =
      WriteInitialWeights(FileSystem::Posix(), to, model, weights, {{"t", 1, {5, 6, 5}, {1, 2, 3}}});
  CHECK(twice == absl::InvalidArgumentError("table 't' has two rows for the key 5"));
  CHECK(fs::is_empty(to));
}

}  // namespace
}  // namespace weir
