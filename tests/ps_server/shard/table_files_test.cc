// A shard's tables into the files of a checkpoint and back: while updates go on, and on other shards.
#include "ps_server/shard/table_files.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/checkpoint_writer.h"
#include "common/model/key_bucket.h"
#include "ps_server/optimizer/kernels.h"
#include "tests/common/checkpoint/checkpoint_fixture.h"
#include "tests/common/faulty_file_system.h"

namespace weir {
namespace {

constexpr char kDir[] = "/c";
constexpr uint64_t kStep = 5;

v1::TableConfig Clicks() {
  v1::TableConfig table = TestTable("clicks", 3);
  table.mutable_optimizer()->set_type(v1::TableOptimizer::KIND_ADAM);
  table.set_admit_after(1);
  table.set_expire_after_steps(9);
  return table;
}
v1::TableConfig Users() {
  v1::TableConfig table = TestTable("users", 2);
  table.mutable_optimizer()->set_type(v1::TableOptimizer::KIND_SGD);
  table.set_max_rows(kKeyBuckets);  // a row for each bucket
  return table;
}

// The gradients of one update: for each table some keys of few, so that keys come again.
struct Gradients {
  std::vector<std::pair<std::vector<uint64_t>, std::vector<float>>> tables;
};

Gradients Draw(RandomStream& random, const std::vector<v1::TableConfig>& tables) {
  Gradients drawn;
  for (const v1::TableConfig& table : tables) {
    drawn.tables.emplace_back();
    auto& [keys, values] = drawn.tables.back();
    // The users' keys share buckets.
    for (uint64_t key = 0; key < 600; ++key) {
      if (random.NextBelow(4) > 0) continue;
      keys.push_back(table.name() == "users" ? key * 7919 : key);
    }
    for (size_t i = 0; i < keys.size() * table.dim(); ++i)
      values.push_back(UniformFloat(random.Next()) - 0.5f);
  }
  return drawn;
}

class Shards {
 public:
  Shards(const std::vector<v1::TableConfig>& tables, uint32_t shards) : configs_(tables) {
    ShardTables::Options options;
    for (const v1::TableConfig& table : tables) *options.tables.Add() = table;
    options.num_shards = shards;
    options.kernels = &BestKernels();
    options.threads = &threads_;
    for (options.shard = 0; options.shard < shards; ++options.shard) {
      auto made = ShardTables::Create(options);
      REQUIRE(made.ok());
      shards_.push_back(*std::move(made));
    }
  }

  uint32_t count() const { return static_cast<uint32_t>(shards_.size()); }
  const std::shared_ptr<ShardTables>& at(uint32_t shard) const { return shards_[shard]; }

  void Update(uint32_t shard, const Gradients& gradients) {
    PushedRows rows;
    for (uint32_t t = 0; t < gradients.tables.size(); ++t) {
      const auto& [keys, values] = gradients.tables[t];
      const size_t dim = configs_[t].dim();
      std::vector<uint64_t> own;
      std::vector<float> of_own;
      for (size_t i = 0; i < keys.size(); ++i) {
        if (ShardOfKey(keys[i], count()) != shard) continue;
        own.push_back(keys[i]);
        of_own.insert(of_own.end(), values.begin() + static_cast<ptrdiff_t>(i * dim),
                      values.begin() + static_cast<ptrdiff_t>((i + 1) * dim));
      }
      PushedRows::OfTable of;
      of.keys.table = t;
      of.keys.count = own.size();
      of.keys.keys = std::make_unique<uint64_t[]>(own.size());
      std::copy(own.begin(), own.end(), of.keys.keys.get());
      of.gradients = std::make_unique<float[]>(of_own.size());
      std::copy(of_own.begin(), of_own.end(), of.gradients.get());
      rows.tables.push_back(std::move(of));
    }
    const WeightedRows weighted{&rows, 1};
    shards_[shard]->Update(absl::MakeConstSpan(&weighted, 1));
  }
  void Update(const Gradients& gradients) {
    for (uint32_t shard = 0; shard < count(); ++shard) Update(shard, gradients);
  }

  // All that the shards hold at their newest version, as bytes.
  std::string State(size_t table) const {
    std::string state;
    const auto add = [&](const void* data, size_t bytes) {
      state.append(static_cast<const char*>(data), bytes);
    };
    std::vector<Table::Row> rows;
    std::vector<Table::Counter> counters;
    for (uint32_t bucket = 0; bucket < kKeyBuckets; ++bucket) {
      const Table& of = shards_[ShardOfBucket(bucket, count())]->table(table);
      if (!of.RowsAt(of.version(), bucket, rows).ok() ||
          !of.CountersAt(of.version(), bucket, counters).ok()) {
        FAIL("bucket " << bucket << " cannot be read");
      }
      for (const Table::Row& row : rows) {
        add(&row.key, sizeof row.key);
        add(&row.updated, sizeof row.updated);
        add(row.words.data(), row.words.size() * sizeof(float));
      }
      for (const Table::Counter& counter : counters) {
        add(&counter.key, sizeof counter.key);
        add(&counter.updated, sizeof counter.updated);
        add(&counter.pushes, sizeof counter.pushes);
      }
    }
    return state;
  }

 private:
  const std::vector<v1::TableConfig> configs_;
  ThreadPool threads_{1};
  std::vector<std::shared_ptr<ShardTables>> shards_;
};

// Where the dense weights of these checkpoints come from.
StoredJob Dense() { return {TestModel(40), {}, 1}; }

TableFiles FilesOf(FileSystem& fs, uint32_t shard, uint32_t num_shards) {
  TableFiles files;
  files.files = &fs;
  files.directory = kDir;
  files.step = kStep;
  files.shard = {shard, num_shards, 7};
  files.in_order = [](const std::function<void()>& turn) { turn(); };
  files.wanted = [] { return true; };
  return files;
}

// Writes the tables of all shards. `between`: what happens after each turn of a shard.
absl::StatusOr<CheckpointReader> Save(FaultyFileSystem& fs, const Shards& shards,
                                      const std::function<void(uint32_t shard)>& between) {
  REQUIRE(BeginCheckpoint(fs, kDir, kStep).ok());
  std::vector<std::unique_ptr<PinnedTables>> pinned;
  for (uint32_t shard = 0; shard < shards.count(); ++shard) {
    pinned.push_back(std::make_unique<PinnedTables>(shards.at(shard)));
  }
  v1::CheckpointManifest manifest = Dense().Manifest(kStep);
  for (uint32_t shard = 0; shard < shards.count(); ++shard) {
    v1::CheckpointFile& file = *manifest.add_files();
    file = *Dense().WriteShard(fs, kDir, kStep, shard, shards.count());
    TableFiles files = FilesOf(fs, shard, shards.count());
    files.in_order = [&](const std::function<void()>& turn) {
      turn();
      between(shard);
    };
    const auto tables = WriteTables(*pinned[shard], files);
    if (!tables.ok()) return tables.status();
    for (const v1::CheckpointTable& table : *tables) *file.add_tables() = table;
  }
  REQUIRE(CommitCheckpoint(fs, kDir, manifest) == absl::OkStatus());
  return CheckpointReader::Open(fs, CheckpointFolder(kDir, kStep));
}

absl::Status Load(const CheckpointReader& reader, Shards& shards, bool weights_only, uint64_t version) {
  for (uint32_t shard = 0; shard < shards.count(); ++shard) {
    const absl::Status loaded =
        LoadTables(reader, weights_only, shard, shards.count(), version, shards.at(shard).get());
    if (!loaded.ok()) return loaded;
  }
  return absl::OkStatus();
}

TEST_CASE(
    "Tables that were saved while updates went on are those of the pinned version, on any shards, and go on "
    "so") {
  const std::vector<v1::TableConfig> tables = {Clicks(), Users()};
  for (const auto& [from, to] : std::vector<std::pair<uint32_t, uint32_t>>{{1, 1}, {1, 3}, {3, 2}, {2, 2}}) {
    INFO(from << " -> " << to);
    FaultyFileSystem fs(1);
    RandomStream random(RandomKey(from, "table_files_test"), to);
    Shards saved(tables, from), reference(tables, 1), restored(tables, to);
    for (int update = 0; update < 15; ++update) {
      const Gradients gradients = Draw(random, tables);
      saved.Update(gradients);
      reference.Update(gradients);
    }
    RandomStream others(RandomKey(8, "table_files_test"), 0);
    int turns = 0;
    const auto reader = Save(fs, saved, [&](uint32_t shard) {
      ++turns;
      saved.Update(shard, Draw(others, tables));
    });
    REQUIRE(reader.status() == absl::OkStatus());
    CHECK(turns > 20);
    // The pins are gone.
    for (uint32_t shard = 0; shard < from; ++shard) {
      CHECK(saved.at(shard)->table(0).stats().former_bytes == 0);
    }
    REQUIRE(Load(*reader, restored, /*weights_only=*/false, 15) == absl::OkStatus());
    CHECK(restored.at(to - 1)->version() == 15);
    CHECK(restored.State(0) != saved.State(0));
    // Expiry, eviction and admission go on from where they were.
    for (int update = 0; update < 15; ++update) {
      for (size_t t : {0, 1}) {
        INFO("table " << t << ", " << update << " updates later");
        if (update % 7 == 0) CHECK(restored.State(t) == reference.State(t));
      }
      const Gradients gradients = Draw(random, tables);
      restored.Update(gradients);
      reference.Update(gradients);
    }
    const Table::Stats clicks = reference.at(0)->table(0).stats(), users = reference.at(0)->table(1).stats();
    CHECK(clicks.expired > 0);
    CHECK(clicks.counters > 0);
    CHECK(users.evicted > 0);
  }
}

TEST_CASE("Weights alone: each row's values, as old as a new job, with slots and counts of none") {
  FaultyFileSystem fs(1);
  RandomStream random(RandomKey(1, "table_files_test"), 1);
  Shards saved({Clicks()}, 2);
  for (int update = 0; update < 5; ++update) saved.Update(Draw(random, {Clicks()}));
  const auto reader = Save(fs, saved, [](uint32_t) {});
  REQUIRE(reader.status() == absl::OkStatus());
  v1::TableConfig other = Clicks();
  other.mutable_optimizer()->set_type(v1::TableOptimizer::KIND_ROWWISE_ADAGRAD);
  Shards begun({other, Users()}, 3);
  REQUIRE(Load(*reader, begun, /*weights_only=*/true, 0) == absl::OkStatus());
  size_t rows = 0;
  for (uint32_t shard = 0; shard < 3; ++shard) {
    const Table& table = begun.at(shard)->table(0);
    CHECK(table.version() == 0);
    CHECK(table.counters() == 0);
    CHECK(begun.at(shard)->table(1).rows() == 0);
    rows += table.rows();
    std::vector<Table::Row> found;
    for (uint32_t bucket = shard; bucket < kKeyBuckets; bucket += 3) {
      if (!table.RowsAt(0, bucket, found).ok()) FAIL("bucket " << bucket << " cannot be read");
      for (const Table::Row& row : found) {
        std::vector<float> values(3);
        const auto& from = saved.at(ShardOfBucket(bucket, 2))->table(0);
        REQUIRE(from.Read({row.key}, values.data()).ok());
        CHECK(std::memcmp(row.words.data(), values.data(), 3 * sizeof(float)) == 0);
        CHECK(row.words[3] == 0);
        CHECK(row.updated == 0);
      }
    }
  }
  CHECK(rows == saved.at(0)->table(0).rows() + saved.at(1)->table(0).rows());
  CHECK(rows > 100);
}

TEST_CASE("A job without tables does not take a checkpoint that has some, nor the other way round") {
  FaultyFileSystem fs(1);
  Shards saved({Clicks()}, 1);
  const auto reader = Save(fs, saved, [](uint32_t) {});
  REQUIRE(reader.status() == absl::OkStatus());
  const absl::Status none = LoadTables(*reader, false, 0, 1, 0, nullptr);
  CHECK(none.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(absl::StrContains(none.message(), "table 'clicks' is not one of the job"));
  Shards other({Clicks(), Users()}, 1);
  const absl::Status more = LoadTables(*reader, false, 0, 1, 0, other.at(0).get());
  CHECK(absl::StrContains(more.message(), "table 'users' is missing in it"));
}

TEST_CASE("A table's file that fails, or that nobody waits for, leaves nothing") {
  FaultyFileSystem fs(1);
  RandomStream random(RandomKey(1, "table_files_test"), 1);
  Shards saved({Clicks()}, 1);
  for (int update = 0; update < 3; ++update) saved.Update(Draw(random, {Clicks()}));
  REQUIRE(BeginCheckpoint(fs, kDir, kStep).ok());
  const PinnedTables pinned(saved.at(0));
  TableFiles files = FilesOf(fs, 0, 1);
  int turns = 0;
  files.wanted = [&] { return ++turns < 3; };
  CHECK(absl::IsAborted(WriteTables(pinned, files).status()));
  CHECK(turns == 3);
  CHECK(fs.List(CheckpointFolder(kDir, kStep))->empty());
  fs.SetCapacity(fs.bytes_used() + 5000);
  const absl::Status full = WriteTables(pinned, FilesOf(fs, 0, 1)).status();
  CHECK(absl::IsResourceExhausted(full));
  CHECK(absl::StrContains(full.message(), "table-000.safetensors"));
  CHECK(fs.List(CheckpointFolder(kDir, kStep))->empty());
  fs.SetCapacity(UINT64_MAX);
  CHECK(WriteTables(pinned, FilesOf(fs, 0, 1)).ok());
}

}  // namespace
}  // namespace weir
