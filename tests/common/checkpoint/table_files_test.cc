// The files of embedding tables in a checkpoint.
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/table_writer.h"
#include "common/model/key_bucket.h"
#include "tests/common/checkpoint/checkpoint_fixture.h"
#include "tests/common/faulty_file_system.h"

namespace weir {
namespace {

bool Says(const absl::Status& status, const std::string& text) {
  INFO(status);
  return absl::StrContains(status.message(), text);
}

StoredJob WithTables() { return {TestModel(100), {"m"}, 1, {TestTable("clicks", 4), TestTable("a/b", 1)}}; }

TEST_CASE("Tables of any number of shards load into any other, bit for bit") {
  const StoredJob job = WithTables();
  for (uint32_t from : {1, 2, 3, 5, 8}) {
    FaultyFileSystem fs(1);
    REQUIRE(job.Write(fs, "/c", 7, from) == absl::OkStatus());
    const auto reader = CheckpointReader::Open(fs, "/c/step-00000007");
    REQUIRE(reader.status() == absl::OkStatus());
    CHECK(reader->Verify() == absl::OkStatus());
    CHECK(reader->NumTables() == 2);
    CHECK(reader->RowsOf(1) == 37);
    for (uint32_t to : {1, 2, 3, 5, 8}) {
      INFO(from << " -> " << to);
      CHECK(job.LoadAll(fs, "/c/step-00000007", to) == absl::OkStatus());
      for (uint32_t shard = 0; shard < to; ++shard) {
        CHECK(job.LoadTables(*reader, shard, to, /*weights_only=*/true) == absl::OkStatus());
      }
    }
  }
}

TEST_CASE("A table's file is a safetensors file of chunks; the other files' names go with them") {
  FaultyFileSystem fs(1);
  const StoredJob job = WithTables();
  REQUIRE(job.Write(fs, "/c", 7, 1).ok());
  CHECK(*fs.List("/c/step-00000007") ==
        std::vector<std::string>{"manifest.json", "shard-00000-of-00001.safetensors",
                                 "shard-00000-of-00001.table-000.safetensors",
                                 "shard-00000-of-00001.table-001.safetensors"});
  const std::string path = "/c/step-00000007/shard-00000-of-00001.table-000.safetensors";
  const auto header = ReadSafetensorsHeader(**fs.Open(path), path);
  REQUIRE(header.status() == absl::OkStatus());
  CHECK(header->metadata.at("weir.table") == "clicks");
  // 200 bytes take 4 rows of 16 + 7 * 4 bytes, and 8 counters of 24.
  REQUIRE(header->tensors.size() == 10 * 4 + 2 * 3);
  CHECK(header->tensors[0].name == "rows/00000/keys");
  CHECK(header->tensors[2].shape == std::vector<uint64_t>{4, 4});
  CHECK(header->tensors[39].name == "rows/00009/slots");
  CHECK(header->tensors[39].shape == std::vector<uint64_t>{1, 3});
  CHECK(header->tensors[40].name == "counters/00000/keys");
  CHECK(header->tensors[45].name == "counters/00001/pushes");
  CHECK(header->tensors[45].shape == std::vector<uint64_t>{4});
}

TEST_CASE("Other tables than the job's are refused, with the first difference") {
  FaultyFileSystem fs(1);
  const StoredJob job = WithTables();
  REQUIRE(job.Write(fs, "/c", 7, 2).ok());
  const auto reader = CheckpointReader::Open(fs, "/c/step-00000007");
  const auto check = [&](const std::function<void(std::vector<v1::TableConfig>&)>& change,
                         bool weights_only) {
    std::vector<v1::TableConfig> tables = job.tables;
    change(tables);
    const absl::Status status = reader->CheckTables(tables, weights_only);
    CHECK((status.ok() || status.code() == absl::StatusCode::kFailedPrecondition));
    return status;
  };
  const auto dim = [](auto& tables) { tables[0].set_dim(8); };
  CHECK(Says(check(dim, false),
             "/c/step-00000007 has other embedding tables than the job: table 'clicks', "
             "dim: expected 8, got 4"));
  CHECK(Says(check(dim, true), "dim: expected 8, got 4"));
  const auto optimizer = [](auto& tables) {
    tables[1].mutable_optimizer()->set_type(v1::TableOptimizer::KIND_ADAM);
  };
  CHECK(Says(check(optimizer, false), "table 'a/b', optimizer.type: expected KIND_ADAM, got KIND_ADAGRAD"));
  CHECK(check(optimizer, true).ok());
  const auto init = [](auto& tables) { tables[1].mutable_init()->set_value(0.25f); };
  CHECK(Says(check(init, false), "init: expected KIND_NORMAL 0.25, got KIND_NORMAL 0.5"));
  CHECK(check(init, true).ok());
  const auto missing = [](auto& tables) { tables.pop_back(); };
  CHECK(Says(check(missing, false), "table 'a/b' is not one of the job"));
  CHECK(Says(check(missing, true), "table 'a/b' is not one of the job"));
  const auto more = [](auto& tables) { tables.push_back(TestTable("new", 1)); };
  CHECK(Says(check(more, false), "table 'new' is missing in it"));
  CHECK(check(more, true).ok());
  // What may change: order, rates, limits.
  CHECK(check(
            [](auto& tables) {
              std::swap(tables[0], tables[1]);
              tables[0].mutable_optimizer()->set_learning_rate(3);
              tables[0].set_max_rows(70000);
            },
            false)
            .ok());
}

TEST_CASE("Tables that do not fit together are not committed") {
  FaultyFileSystem fs(1);
  const StoredJob job = WithTables();
  REQUIRE(BeginCheckpoint(fs, "/c", 5).ok());
  const v1::CheckpointFile one = *job.WriteShard(fs, "/c", 5, 0, 2), two = *job.WriteShard(fs, "/c", 5, 1, 2);
  const auto commit = [&](const std::function<void(v1::CheckpointFile&)>& spoil) {
    v1::CheckpointManifest manifest = job.Manifest(5);
    *manifest.add_files() = one;
    *manifest.add_files() = two;
    spoil(*manifest.mutable_files(1));
    const absl::Status status = CommitCheckpoint(fs, "/c", manifest);
    CHECK(LatestComplete(fs, "/c").status().code() == absl::StatusCode::kNotFound);
    return status;
  };
  CHECK(Says(commit([](auto& f) { f.mutable_tables()->RemoveLast(); }),
             "files[1].number of tables: expected 2, got 1"));
  CHECK(Says(commit([](auto& f) { *f.mutable_tables(1) = f.tables(0); }), "tables[1].table.name: 'clicks'"));
  CHECK(Says(commit([](auto& f) { f.mutable_tables(0)->mutable_table()->set_dim(0); }), "dim: must be in"));
  CHECK(Says(commit([](auto& f) { f.mutable_tables(0)->mutable_table()->set_dim(5); }), "tables[0].table:"));
  CHECK(Says(commit([](auto& f) { f.mutable_tables(0)->set_slot_words(UINT64_MAX); }), "slot_words"));
  CHECK(Says(commit([](auto& f) { f.mutable_tables(0)->set_chunk_bytes(0); }), "chunk_bytes"));
  CHECK(Says(commit([](auto& f) { f.mutable_tables(0)->set_rows(UINT64_MAX); }), "number of tensors"));
  CHECK(Says(commit([](auto& f) { f.mutable_tables(0)->set_name("../x"); }), "tables[0].name"));
  CHECK(Says(commit([](auto& f) { f.mutable_tables(0)->set_crc32c(4); }), "tables[0].crc32c"));
  CHECK(Says(commit([](auto& f) { f.mutable_tables(0)->set_bytes(4); }), "tables[0].bytes"));
  const std::string path = JoinPath("/c/step-00000005", two.tables(1).name());
  REQUIRE(fs.Remove(path).ok());
  CHECK(Says(commit([](auto&) {}), path));
}

TEST_CASE("Rows that cannot be a shard's are refused, whatever their checksums say") {
  const StoredJob job = WithTables();
  // Writes rows of these keys and versions as one shard's of two.
  const auto verify = [&](const std::vector<std::pair<uint64_t, uint64_t>>& rows, uint32_t pushes = 1) {
    FaultyFileSystem fs(1);
    REQUIRE(BeginCheckpoint(fs, "/c", 5).ok());
    v1::CheckpointManifest manifest = job.Manifest(5);
    for (uint32_t shard : {0, 1}) {
      StoredJob dense = job;
      dense.tables.clear();
      v1::CheckpointFile& file = *manifest.add_files();
      file = *dense.WriteShard(fs, "/c", 5, shard, 2);
      v1::CheckpointTable table;
      *table.mutable_table() = TestTable("clicks", 1);
      table.set_rows(shard == 0 ? rows.size() : 0);
      table.set_counters(shard == 0 ? 1 : 0);
      table.set_chunk_bytes(40);
      auto writer = *TableWriter::Create(fs, "/c", 5, {shard, 2, 7}, 0, table);
      if (shard == 0) {
        for (const auto& [key, updated] : rows) writer->AddRow(key, updated, {1.0f});
        writer->AddCounter(rows[0].first, 1, pushes);
      }
      *file.add_tables() = *writer->Finish(absl::OkStatus());
    }
    REQUIRE(CommitCheckpoint(fs, "/c", manifest) == absl::OkStatus());
    return CheckpointReader::Open(fs, "/c/step-00000005")->Verify();
  };
  std::vector<uint64_t> keys;  // of shard 0, by rising bucket
  for (uint64_t key = 0; keys.size() < 3; ++key) {
    const uint32_t bucket = BucketOfHash(HashKey(key));
    if (bucket % 2 == 0 && (keys.empty() || bucket > BucketOfHash(HashKey(keys.back())))) keys.push_back(key);
  }
  uint64_t stranger = 0;
  while (BucketOfHash(HashKey(stranger)) % 2 == 0) ++stranger;
  CHECK(verify({{keys[0], 1}, {keys[1], 1001}, {keys[2], 3}}) == absl::OkStatus());
  for (const auto& [rows, pushes] :
       std::vector<std::pair<std::vector<std::pair<uint64_t, uint64_t>>, uint32_t>>{
           {{{keys[1], 1}, {keys[0], 1}}, 1},  // the order
           {{{keys[0], 1}, {keys[0], 1}}, 1},  // twice
           {{{keys[0], 1002}}, 1},             // after version 1001
           {{{stranger, 1}}, 1},               // of the other shard
           {{{keys[0], 1}}, 0}}) {             // a count of nothing
    const absl::Status status = verify(rows, pushes);
    CHECK(status.code() == absl::StatusCode::kDataLoss);
    CHECK(Says(status, "/c/step-00000005/shard-00000-of-00002.table-000.safetensors: tensor '"));
  }
}

TEST_CASE("A table's file with fewer or more rows than announced is none") {
  for (uint64_t announced : {1, 3}) {
    FaultyFileSystem fs(1);
    REQUIRE(BeginCheckpoint(fs, "/c", 5).ok());
    v1::CheckpointTable table;
    *table.mutable_table() = TestTable("clicks", 1);
    table.set_rows(announced);
    table.set_chunk_bytes(20);
    auto writer = *TableWriter::Create(fs, "/c", 5, {}, 0, table);
    for (uint64_t key : {1, 2}) writer->AddRow(key, 1, {1.0f});
    const absl::Status written = writer->Write();
    const absl::Status status = writer->Finish(written).status();
    CHECK(status.code() == absl::StatusCode::kInternal);
    CHECK(
        Says(status, "2, 0, 0, 0 rows, counters, removed rows and removed counters were to be written, not"));
    CHECK(fs.List("/c/step-00000005")->empty());
  }
}

TEST_CASE("An export holds each table's keys and values; a name that the model has too is refused") {
  for (uint32_t shards : {1, 3}) {
    FaultyFileSystem fs(1);
    StoredJob job = WithTables();
    REQUIRE(job.Write(fs, "/c", 7, shards).ok());
    REQUIRE(CheckpointReader::Open(fs, "/c/step-00000007")->Export("/out").status() == absl::OkStatus());
    const auto header = ReadSafetensorsHeader(**fs.Open("/out"), "/out");
    REQUIRE(header.status() == absl::OkStatus());
    REQUIRE(header->tensors.size() == job.model.tensors.size() + 4);
    const std::string data = fs.Contents("/out").substr(header->bytes);
    for (size_t t = 0; t < 2; ++t) {
      const StoredTensor& keys = header->tensors[job.model.tensors.size() + 2 * t];
      const StoredTensor& values = header->tensors[job.model.tensors.size() + 2 * t + 1];
      CHECK(keys.name == job.tables[t].name() + "/keys");
      CHECK(keys.type == TensorType::kI64);
      CHECK(values.name == job.tables[t].name() + "/values");
      REQUIRE(values.shape == std::vector<uint64_t>{37, job.tables[t].dim()});
      const auto rows = job.Entries(t, false);
      for (size_t i = 0; i < 37; ++i) {
        uint64_t key;
        std::memcpy(&key, data.data() + keys.offset + i * sizeof key, sizeof key);
        REQUIRE(rows.count(key) == 1);
        const std::vector<float>& expected = rows.at(key).values;
        const size_t bytes = expected.size() * sizeof(float);
        CHECK(std::memcmp(data.data() + values.offset + i * bytes, expected.data(), bytes) == 0);
      }
    }
    job.tables[0].set_name("x");
    job.model.tensors[0].name = "x/keys";
    REQUIRE(job.Write(fs, "/d", 7, shards).ok());
    const absl::Status status = CheckpointReader::Open(fs, "/d/step-00000007")->Export("/out2").status();
    CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
    CHECK(Says(status, "the model has a tensor 'x/keys', which table 'x' needs in an export"));
  }
}

}  // namespace
}  // namespace weir
