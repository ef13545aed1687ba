// A shard's tables are written into the files of a checkpoint and read back: while updates continue, and on
// more or fewer shards.
#include "ps_server/shard/restore/table_files.h"

#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/model/key_bucket.h"
#include "tests/ps_server/shard/restore/table_shards.h"

namespace weir {
namespace {

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
    // The pins are released.
    for (uint32_t shard = 0; shard < from; ++shard) {
      CHECK(saved.at(shard)->table(0).stats().former_bytes == 0);
    }
    REQUIRE(Load(*reader, restored, /*weights_only=*/false) == absl::OkStatus());
    CHECK(restored.at(to - 1)->version() == 15);
    CHECK(restored.State(0) != saved.State(0));
    // Expiry, eviction and admission continue from where they were.
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
  REQUIRE(Load(*reader, begun, /*weights_only=*/true) == absl::OkStatus());
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
  const absl::Status none = LoadTables(*reader, false, 0, 1, nullptr);
  CHECK(none.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(absl::StrContains(none.message(), "table 'clicks' is not one of the job"));
  Shards other({Clicks(), Users()}, 1);
  const absl::Status more = LoadTables(*reader, false, 0, 1, other.at(0).get());
  CHECK(absl::StrContains(more.message(), "table 'users' is missing in it"));
}

TEST_CASE("A table's file that fails, or that nobody waits for, leaves nothing") {
  FaultyFileSystem fs(1);
  RandomStream random(RandomKey(1, "table_files_test"), 1);
  Shards saved({Clicks()}, 1);
  for (int update = 0; update < 3; ++update) saved.Update(Draw(random, {Clicks()}));
  REQUIRE(BeginCheckpoint(fs, kDir, kStep).ok());
  const PinnedTables pinned(saved.at(0), kStep, std::nullopt, 0);
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
