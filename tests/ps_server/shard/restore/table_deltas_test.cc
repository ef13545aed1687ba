// Checkpoints that hold only the changes of a shard's tables, compared with tables that were never saved.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "ps_server/shard/restore/table_files.h"
#include "tests/ps_server/shard/restore/table_shards.h"

namespace weir {
namespace {

const std::vector<v1::TableConfig>& Both() {
  static const auto& tables = *new std::vector<v1::TableConfig>([] {
    v1::TableConfig clicks = Clicks();
    clicks.set_expire_after_steps(20);
    return std::vector<v1::TableConfig>{clicks, Users()};
  }());
  return tables;
}

std::vector<v1::TableConfig> OnlyClicks() { return {Clicks()}; }

const std::function<void(uint32_t)> kNothing = [](uint32_t) {};

// How many files of a checkpoint are deltas.
int Deltas(const CheckpointReader& reader) {
  int deltas = 0;
  for (const v1::CheckpointFile& file : reader.manifest().files()) {
    for (const v1::CheckpointTable& table : file.tables()) deltas += table.has_delta_since() ? 1 : 0;
  }
  return deltas;
}

// Sums a field of all deltas.
uint64_t Sum(const CheckpointReader& reader, uint64_t (v1::CheckpointTable::*field)() const) {
  uint64_t sum = 0;
  for (const v1::CheckpointFile& file : reader.manifest().files()) {
    for (const v1::CheckpointTable& table : file.tables()) sum += (table.*field)();
  }
  return sum;
}

TEST_CASE(
    "After each delta of a chain the tables are those that were never saved, on any shards, and go on so") {
  for (const auto& [from, to] : std::vector<std::pair<uint32_t, uint32_t>>{{1, 1}, {1, 3}, {3, 2}, {2, 2}}) {
    INFO(from << " -> " << to);
    FaultyFileSystem fs(1);
    RandomStream random(RandomKey(from, "table_deltas_test"), to);
    Shards reference(Both(), 1);
    auto saved = std::make_unique<Shards>(Both(), from);
    const auto update = [&](uint32_t rare) {
      const Gradients gradients = Draw(random, Both(), rare);
      saved->Update(gradients);
      reference.Update(gradients);
    };
    uint64_t version = 0;
    for (; version < 15; ++version) update(4);
    uint64_t step = 10, removed_rows = 0, removed_counters = 0, changed_counters = 0;
    REQUIRE(Save(fs, *saved, kNothing, step).status() == absl::OkStatus());
    int chain = 0;
    while (chain < 8) {
      INFO("chain " << chain << ", version " << version);
      // Some of these versions update no row, but rows expire.
      for (int i = 0; i <= chain % 3; ++i, ++version) update(i == 1 ? 100000 : 60);
      // Updates that come while the files are written belong to the next delta.
      std::vector<Gradients> meanwhile;
      for (int i = 0; i < 2; ++i) meanwhile.push_back(Draw(random, Both(), 90));
      std::vector<size_t> next(from);
      const auto reader = Save(
          fs, *saved,
          [&](uint32_t shard) {
            if (next[shard] < meanwhile.size()) saved->Update(shard, meanwhile[next[shard]++]);
          },
          step + 10, step);
      step += 10;
      REQUIRE(reader.status() == absl::OkStatus());
      CHECK(next == std::vector<size_t>(from, meanwhile.size()));
      REQUIRE(Deltas(*reader) == static_cast<int>(2 * from));
      CHECK(reader->manifest().chain_size() == ++chain);
      CHECK(reader->Verify() == absl::OkStatus());
      removed_rows += Sum(*reader, &v1::CheckpointTable::removed_rows);
      removed_counters += Sum(*reader, &v1::CheckpointTable::removed_counters);
      changed_counters += Sum(*reader, &v1::CheckpointTable::counters);
      auto restored = std::make_unique<Shards>(Both(), to);
      REQUIRE(Load(*reader, *restored, /*weights_only=*/false) == absl::OkStatus());
      for (size_t t : {0, 1}) {
        CHECK(restored->State(t) == reference.State(t));
        CHECK(reader->RowsOf(t) == reference.at(0)->table(t).rows());
      }
      for (const Gradients& gradients : meanwhile) {
        reference.Update(gradients);
        restored->Update(gradients);
      }
      version += meanwhile.size();
      for (size_t t : {0, 1}) CHECK(restored->State(t) == reference.State(t));
      // If a job continues from here on as many shards, it builds on the same chain.
      if (from == to && chain == 4) saved = std::move(restored);
    }
    CHECK(removed_rows > 20);
    CHECK(removed_counters > 20);
    CHECK(changed_counters > 10);
    CHECK(reference.at(0)->table(1).stats().evicted > 0);
  }
}

TEST_CASE("All rows are written where a delta would not do, or would save little") {
  FaultyFileSystem fs(1);
  RandomStream random(RandomKey(1, "table_deltas_test"), 9);
  auto job = std::make_unique<Shards>(OnlyClicks(), 2);
  for (int i = 0; i < 15; ++i) job->Update(Draw(random, OnlyClicks()));
  const auto deltas = [&](uint64_t step, std::optional<uint64_t> follows) {
    job->Update(Draw(random, OnlyClicks(), 60));
    const auto reader = Save(fs, *job, kNothing, step, follows);
    REQUIRE(reader.status() == absl::OkStatus());
    CHECK(reader->Verify() == absl::OkStatus());
    CHECK((reader->manifest().chain_size() > 0) == (Deltas(*reader) > 0));
    return Deltas(*reader);
  };
  CHECK(deltas(1, std::nullopt) == 0);
  CHECK(deltas(2, 1) == 2);
  // Checkpoint 3 failed, or was never frozen.
  CHECK(deltas(4, 3) == 0);
  CHECK(deltas(5, 4) == 2);
  for (int i = 0; i < 3; ++i) job->Update(Draw(random, OnlyClicks(), 2));
  CHECK(deltas(6, 5) == 0);
  CHECK(deltas(7, 6) == 2);
  const auto last = CheckpointReader::Open(fs, CheckpointFolder(kDir, 7));
  SECTION("restored, as saved") {
    job = std::make_unique<Shards>(OnlyClicks(), 2);
    REQUIRE(Load(*last, *job, false) == absl::OkStatus());
    CHECK(deltas(8, 7) == 2);
  }
  SECTION("on another number of shards") {
    job = std::make_unique<Shards>(OnlyClicks(), 3);
    REQUIRE(Load(*last, *job, false) == absl::OkStatus());
    CHECK(deltas(8, 7) == 0);
  }
  SECTION("weights alone") {
    job = std::make_unique<Shards>(OnlyClicks(), 2);
    REQUIRE(Load(*last, *job, true) == absl::OkStatus());
    CHECK(deltas(8, 7) == 0);
  }
  SECTION("the config wants none") {
    job = std::make_unique<Shards>(OnlyClicks(), 2, /*notes_changes=*/false);
    REQUIRE(Load(*last, *job, false) == absl::OkStatus());
    CHECK(deltas(8, 7) == 0);
  }
  SECTION("counts that are no longer needed went with the restore") {
    v1::TableConfig lower = Clicks();
    lower.set_admit_after(0);
    job = std::make_unique<Shards>(std::vector<v1::TableConfig>{lower}, 2);
    REQUIRE(Load(*last, *job, false) == absl::OkStatus());
    CHECK(deltas(8, 7) == 0);
  }
}

TEST_CASE("A delta makes up for what the shard writes beside it, too") {
  RandomStream random(RandomKey(1, "table_deltas_test"), 3);
  Shards job(OnlyClicks(), 1);
  for (int i = 0; i < 15; ++i) job.Update(Draw(random, OnlyClicks()));
  uint64_t step = 0;
  const auto delta = [&](uint64_t other_bytes) {
    job.Update(Draw(random, OnlyClicks(), 60));
    ++step;
    return PinnedTables(job.at(0), step, step - 1, other_bytes).files[0].record.has_delta_since();
  };
  CHECK(!delta(0));
  CHECK(delta(0));
  CHECK(!delta(1 << 20));
  CHECK(delta(0));
}

TEST_CASE("A table that loses more keys than are kept is written whole, and then has deltas again") {
  v1::TableConfig table = TestTable("t", 8);
  table.mutable_optimizer()->set_type(v1::TableOptimizer::KIND_SGD);
  table.set_expire_after_steps(2);
  Shards job({table}, 1);
  // Each of the 64 partitions has more keys than are kept when they are removed.
  constexpr uint64_t kKeys = 64 * (RecordChanges::kMostRemoved + 1000);
  const auto update = [&](uint64_t first, uint64_t end) {
    Gradients gradients;
    gradients.tables.emplace_back();
    auto& [keys, values] = gradients.tables.back();
    for (uint64_t key = first; key < end; ++key) keys.push_back(key);
    values.assign(keys.size() * 8, 0.5f);
    job.Update(gradients);
  };
  uint64_t step = 0;
  const auto pin = [&] {
    ++step;
    return std::make_unique<PinnedTables>(job.at(0), step, step - 1, 0);
  };
  update(0, kKeys);
  CHECK(!pin()->files[0].record.has_delta_since());
  const size_t bytes = job.at(0)->table(0).stats().bytes;
  for (int i = 0; i < 6; ++i) update(kKeys, kKeys + 20000);
  CHECK(job.at(0)->table(0).rows() == 20000);
  CHECK(job.at(0)->table(0).stats().bytes < bytes + (4 << 20));
  CHECK(!pin()->files[0].record.has_delta_since());
  update(kKeys, kKeys + 100);
  CHECK(pin()->files[0].record.has_delta_since());
}

}  // namespace
}  // namespace weir
