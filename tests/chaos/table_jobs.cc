#include "tests/chaos/table_jobs.h"

#include <array>
#include <cstdint>
#include <fstream>
#include <map>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/model/key_bucket.h"
#include "common/model/table_digest.h"
#include "common/system/file_system.h"
#include "tests/integration/applied_batches.h"
#include "worker/data/dataset.h"

namespace weir {
namespace {

constexpr size_t kExamples = 1600, kUsers = 1200, kItems = 60;
// Of the items.
constexpr uint32_t kBuckets = 20;
// A row that counts begins here: far from 0, so that the model's output is, and exact in float32.
constexpr float kStart = -4096;

// What an example names, a key for each table.
constexpr std::array<const char*, 2> kTables = {"users", "items"};
using Example = std::array<uint64_t, 2>;

std::vector<Example> Examples() {
  RandomStream random(RandomKey(1, "chaos tables"), 0);
  // Several of each bucket, so that quotas evict rows.
  std::vector<uint64_t> items;
  for (uint64_t key = 0; items.size() < kItems; ++key) {
    if (BucketOfHash(HashKey(key)) < kBuckets) items.push_back(key);
  }
  std::vector<Example> examples;
  for (size_t i = 0; i < kExamples; ++i) {
    const uint64_t user = random.NextBelow(kUsers);
    examples.push_back({user * 0x9e3779b97f4a7c15, items[random.NextBelow(kItems)]});
  }
  return examples;
}

// By bucket and key.
using Rows = std::map<std::pair<uint32_t, uint64_t>, std::vector<float>>;

std::pair<uint32_t, uint64_t> PlaceOf(uint64_t key) { return {BucketOfHash(HashKey(key)), key}; }

absl::StatusOr<Rows> ReadRows(const CheckpointReader& reader, const std::string& table) {
  Rows rows;
  const size_t index = reader.FindTable(table);
  const size_t dim = reader.TableAt(index).dim();
  CheckpointReader::TableTarget target;
  target.rows = [&](const TableEntries& from) {
    for (size_t i = 0; i < from.keys.size(); ++i) {
      const auto row = from.values.begin() + static_cast<ptrdiff_t>(i * dim);
      rows[PlaceOf(from.keys[i])].assign(row, row + static_cast<ptrdiff_t>(dim));
    }
    return absl::OkStatus();
  };
  WEIR_RETURN_IF_ERROR(reader.LoadTable(index, /*shard=*/0, /*num_shards=*/1, target));
  return rows;
}

// The rows that count, by table, from the batches that each shard has applied.
absl::StatusOr<std::vector<Rows>> CountRows(const CheckpointReader& reader) {
  const v1::JobConfig& config = reader.manifest().job().config();
  const std::vector<Example> examples = Examples();
  const uint64_t batch_size = config.data().batch_size();
  std::vector<int32_t> order(config.train().examples());
  ExampleOrder(static_cast<int32_t>(examples.size()), config.seed()).Fill(0, absl::MakeSpan(order));
  std::vector<Rows> rows(kTables.size());
  bool beyond = false;
  WEIR_RETURN_IF_ERROR(ForEachApplied(reader, [&](uint32_t shard, uint64_t batch) {
    beyond |= batch >= order.size() / batch_size;
    for (uint64_t at = batch * batch_size; !beyond && at < (batch + 1) * batch_size; ++at) {
      const Example& example = examples[static_cast<size_t>(order[at])];
      for (size_t table = 0; table < kTables.size(); ++table) {
        if (ShardOfKey(example[table], reader.manifest().num_shards()) != shard) continue;
        std::vector<float>& row = rows[table][PlaceOf(example[table])];
        row.resize(1, kStart);
        ++row[0];
      }
    }
  }));
  if (beyond) return absl::DataLossError("a batch beyond the job's last");
  return rows;
}

// "": they are the same.
std::string Difference(const Rows& got, const Rows& expected) {
  for (const auto& [place, row] : expected) {
    const auto found = got.find(place);
    if (found == got.end()) return absl::StrCat("key ", place.second, " has no row");
    if (found->second == row) continue;
    return absl::StrCat("key ", place.second, " counts ", found->second[0] - kStart, ", not ",
                        row[0] - kStart);
  }
  for (const auto& [place, row] : got) {
    if (expected.count(place) == 0) return absl::StrCat("key ", place.second, " has a row");
  }
  return "";
}

absl::Status Check(const nlohmann::json& summary, RowsOfJob kind, std::vector<std::string>* wrong) {
  const std::string checkpoint = summary.value("checkpoint", "");
  WEIR_ASSIGN_OR_RETURN(const CheckpointReader reader,
                        CheckpointReader::Open(FileSystem::Posix(), checkpoint));
  std::vector<Rows> counts;
  if (kind == RowsOfJob::kCount) {
    WEIR_ASSIGN_OR_RETURN(counts, CountRows(reader));
  }
  std::map<std::string, std::string> digests;
  for (size_t table = 0; table < kTables.size(); ++table) {
    WEIR_ASSIGN_OR_RETURN(const Rows rows, ReadRows(reader, kTables[table]));
    if (rows.empty()) wrong->push_back(absl::StrCat("table ", kTables[table], " has no rows at the end"));
    TableDigest digest;
    for (const auto& [place, values] : rows) digest.AddRow(place.second, values);
    digests[kTables[table]] = digest.Finish();
    if (kind != RowsOfJob::kCount) continue;
    const std::string difference = Difference(rows, counts[table]);
    if (!difference.empty()) {
      wrong->push_back(
          absl::StrCat("table ", kTables[table], " against the batches of its shards: ", difference));
    }
  }
  const nlohmann::json& said = summary.at("tables_sha256");
  const std::string saved = TablesSha256(digests);
  if (said != saved) {
    wrong->push_back(
        absl::StrCat("tables_sha256 is ", said.dump(), ", of the rows in ", checkpoint, " ", saved));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AddTables(const std::string& folder, RowsOfJob rows, nlohmann::json* config) {
  const bool counts = rows == RowsOfJob::kCount;
  const std::string path = folder + "/examples.csv";
  std::ofstream file(path);
  for (const Example& example : Examples()) {
    const bool label = counts || (example[0] + example[1]) % 3 == 0;
    file << example[0] << ',' << example[1] << ',' << label << '\n';
  }
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat(path, " cannot be written"));

  nlohmann::json& job = *config;
  job["data"].update(nlohmann::json::parse(R"({"format": "csv", "columns": [
    {"name": "user", "type": "key"}, {"name": "item", "type": "key"}, {"name": "label", "type": "label"}]})"));
  job["data"]["train"]["path"] = job["data"]["test"]["path"] = path;
  nlohmann::json layers = nlohmann::json::parse(R"([
    {"type": "embedding", "name": "user", "table": "users", "column": "user"},
    {"type": "embedding", "name": "item", "table": "items", "column": "item"}])");
  nlohmann::json rest;
  if (counts) {
    // The gradient of a row is that of the output, -1 / batch_size.
    rest = nlohmann::json::parse(R"([{"type": "factorization_machine", "inputs": ["user", "item"]}])");
    job["train"].erase("clip_norm");
    job["optimizer"] = {{"type", "sgd"}, {"learning_rate", 0.01}};
    for (const char* name : kTables) {
      job["tables"].push_back(
          {{"name", name},
           {"dim", 1},
           {"init", {{"type", "constant"}, {"value", kStart}}},
           {"optimizer", {{"type", "sgd"}, {"learning_rate", job["data"]["batch_size"]}}}});
    }
  } else {
    rest = nlohmann::json::parse(R"([
      {"type": "concat", "inputs": ["user", "item"]},
      {"type": "dense", "units": 8},
      {"type": "tanh"},
      {"type": "dropout", "rate": 0.2},
      {"type": "dense", "units": 1}])");
    job["tables"] = nlohmann::json::parse(R"([
      {"name": "users", "dim": 8, "expire_after_steps": 25, "optimizer": {"type": "adam", "learning_rate": 0.01}},
      {"name": "items", "dim": 4, "admit_after": 1, "max_rows": 65536, "optimizer": {"learning_rate": 0.05}}])");
  }
  layers.insert(layers.end(), rest.begin(), rest.end());
  job["model"] = {{"layers", layers}, {"loss", "sigmoid_cross_entropy"}};
  return absl::OkStatus();
}

std::vector<std::string> CheckRows(const nlohmann::json& summary, RowsOfJob rows) {
  std::vector<std::string> wrong;
  const absl::Status status = Check(summary, rows, &wrong);
  if (!status.ok()) wrong.emplace_back(status.message());
  return wrong;
}

}  // namespace weir
