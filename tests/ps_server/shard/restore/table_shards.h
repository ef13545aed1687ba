#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/checkpoint_writer.h"
#include "common/model/key_bucket.h"
#include "common/optimizer/kernels.h"
#include "ps_server/shard/restore/table_files.h"
#include "tests/common/checkpoint/checkpoint_fixture.h"
#include "tests/common/faulty_file_system.h"

// The tables of a job's shards for tests of their files, without the shards around them.
namespace weir {

constexpr char kDir[] = "/c";
constexpr uint64_t kStep = 5;

inline v1::TableConfig Clicks() {
  v1::TableConfig table = TestTable("clicks", 3);
  table.mutable_optimizer()->set_type(v1::TableOptimizer::KIND_ADAM);
  table.set_admit_after(1);
  table.set_expire_after_steps(9);
  return table;
}
inline v1::TableConfig Users() {
  v1::TableConfig table = TestTable("users", 2);
  table.mutable_optimizer()->set_type(v1::TableOptimizer::KIND_SGD);
  table.set_max_rows(kKeyBuckets);  // a row for each bucket
  return table;
}

// The gradients of one update: for each table some keys out of few, so that keys come again.
struct Gradients {
  std::vector<std::pair<std::vector<uint64_t>, std::vector<float>>> tables;
};

// Draws about one of `rare` keys.
inline Gradients Draw(RandomStream& random, const std::vector<v1::TableConfig>& tables, uint32_t rare = 4) {
  Gradients drawn;
  for (const v1::TableConfig& table : tables) {
    drawn.tables.emplace_back();
    auto& [keys, values] = drawn.tables.back();
    // The users' keys share buckets.
    for (uint64_t key = 0; key < 600; ++key) {
      if (random.NextBelow(rare) > 0) continue;
      keys.push_back(table.name() == "users" ? key * 7919 : key);
    }
    for (size_t i = 0; i < keys.size() * table.dim(); ++i)
      values.push_back(UniformFloat(random.Next()) - 0.5f);
  }
  return drawn;
}

class Shards {
 public:
  Shards(const std::vector<v1::TableConfig>& tables, uint32_t shards, bool notes_changes = true)
      : configs_(tables) {
    ShardTables::Options options;
    for (const v1::TableConfig& table : tables) *options.tables.Add() = table;
    options.num_shards = shards;
    options.notes_changes = notes_changes;
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
    REQUIRE(shards_[shard]->Update(absl::MakeConstSpan(&weighted, 1)).ok());
  }
  void Update(const Gradients& gradients) {
    for (uint32_t shard = 0; shard < count(); ++shard) Update(shard, gradients);
  }

  // All data of the table at the shards' newest version, as bytes.
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

// The dense part of these checkpoints, at a version of the tables.
inline StoredJob Dense(uint64_t version) {
  StoredJob job{TestModel(40), {}, 1};
  job.version = version;
  return job;
}

inline TableFiles FilesOf(FileSystem& fs, uint32_t shard, uint32_t num_shards, uint64_t step = kStep) {
  TableFiles files;
  files.files = &fs;
  files.directory = kDir;
  files.step = step;
  files.shard = {shard, num_shards, 7};
  files.in_order = [](const std::function<void()>& turn) { turn(); };
  files.wanted = [] { return true; };
  return files;
}

// Writes the tables of all shards. `between` runs after each turn of a shard. `follows`: the step of the
// checkpoint that deltas may build on.
inline absl::StatusOr<CheckpointReader> Save(FileSystem& fs, const Shards& shards,
                                             const std::function<void(uint32_t shard)>& between,
                                             uint64_t step = kStep,
                                             std::optional<uint64_t> follows = std::nullopt) {
  REQUIRE(BeginCheckpoint(fs, kDir, step).ok());
  std::vector<std::unique_ptr<PinnedTables>> pinned;
  for (uint32_t shard = 0; shard < shards.count(); ++shard) {
    pinned.push_back(std::make_unique<PinnedTables>(shards.at(shard), step, follows, /*other_bytes=*/0));
  }
  v1::CheckpointManifest manifest = Dense(1).Manifest(step);
  for (uint32_t shard = 0; shard < shards.count(); ++shard) {
    v1::CheckpointFile& file = *manifest.add_files();
    file = *Dense(pinned[shard]->pinned->version()).WriteShard(fs, kDir, step, shard, shards.count());
    TableFiles files = FilesOf(fs, shard, shards.count(), step);
    files.in_order = [&](const std::function<void()>& turn) {
      turn();
      between(shard);
    };
    const auto tables = WriteTables(*pinned[shard], files);
    if (!tables.ok()) return tables.status();
    for (const v1::CheckpointTable& table : *tables) {
      *file.add_tables() = table;
      if (table.has_delta_since() && manifest.chain().empty()) manifest.add_chain()->set_step(*follows);
    }
  }
  REQUIRE(CommitCheckpoint(fs, kDir, manifest) == absl::OkStatus());
  return CheckpointReader::Open(fs, CheckpointFolder(kDir, step));
}

inline absl::Status Load(const CheckpointReader& reader, Shards& shards, bool weights_only) {
  for (uint32_t shard = 0; shard < shards.count(); ++shard) {
    const absl::Status loaded =
        LoadTables(reader, weights_only, shard, shards.count(), shards.at(shard).get());
    if (!loaded.ok()) return loaded;
  }
  return absl::OkStatus();
}

}  // namespace weir
