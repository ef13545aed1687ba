#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "catch2/catch.hpp"
#include "common/base/checksums.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/checkpoint_writer.h"
#include "common/model/partition.h"
#include "tests/common/checkpoint/checkpoint_fixture.h"
#include "tests/common/faulty_file_system.h"

namespace weir {
namespace {

bool Says(const absl::Status& status, const std::string& text) {
  INFO(status);
  return absl::StrContains(status.message(), text);
}

TEST_CASE("A checkpoint of any number of shards loads into any other, bit for bit") {
  for (int64_t elements : {8, 15, 16, 17, 100, 1000, 5000, 131072 * 4 + 77}) {
    const bool large = elements > 100'000;
    const std::vector<std::string> slots =
        large ? std::vector<std::string>{"m"} : std::vector<std::string>{"m", "v"};
    const StoredJob job{TestModel(elements), slots, static_cast<uint64_t>(elements)};
    const std::vector<uint32_t> sizes =
        large ? std::vector<uint32_t>{1, 2, 3} : std::vector<uint32_t>{1, 2, 3, 4, 5, 8, 13};
    for (uint32_t from : sizes) {
      FaultyFileSystem fs(1);
      REQUIRE(job.Write(fs, "/c", 1200, from) == absl::OkStatus());
      const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(fs, "/c/step-00001200");
      REQUIRE(reader.status() == absl::OkStatus());
      CHECK(reader->Verify() == absl::OkStatus());
      for (uint32_t to : sizes) {
        INFO(elements << " elements, " << from << " -> " << to);
        REQUIRE(job.LoadAll(fs, "/c/step-00001200", to) == absl::OkStatus());
        std::vector<float> weights(static_cast<size_t>(Partition(elements, to).shard_elements(to - 1)));
        REQUIRE(reader->LoadWeights(job.model, to - 1, to, absl::MakeSpan(weights)) == absl::OkStatus());
        const std::vector<float> wanted = job.Array(0, to - 1, to);
        CHECK((weights.empty() || std::memcmp(weights.data(), wanted.data(), 4 * weights.size()) == 0));
      }
    }
  }
}

TEST_CASE("On the machine's own disk") {
  std::string dir = JoinPath(getenv("TEST_TMPDIR") != nullptr ? getenv("TEST_TMPDIR") : "/tmp", "ckXXXXXX");
  REQUIRE(mkdtemp(&dir[0]) != nullptr);
  dir += "/a/b";
  FileSystem& fs = FileSystem::Posix();
  const StoredJob job{TestModel(1000), {"v"}, 1};
  for (uint64_t step : {1, 2, 3}) REQUIRE(job.Write(fs, dir, step, 2) == absl::OkStatus());
  REQUIRE(RemoveOldCheckpoints(fs, dir, 3, 2) == absl::OkStatus());
  CHECK(*fs.List(dir) == std::vector<std::string>{"step-00000002", "step-00000003"});
  CHECK(*fs.List(dir + "/step-00000003") == std::vector<std::string>{"manifest.json",
                                                                     "shard-00000-of-00002.safetensors",
                                                                     "shard-00001-of-00002.safetensors"});
  CHECK(job.LoadAll(fs, LatestComplete(fs, dir)->folder, 3) == absl::OkStatus());
}

TEST_CASE("A shard's file is read alone where the number of shards stays") {
  FaultyFileSystem fs(1);
  const StoredJob job{TestModel(1000), {}, 1};
  REQUIRE(job.Write(fs, "/c", 1, 2).ok());
  const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(fs, "/c/step-00000001");
  fs.SetFault([](const FaultyFileSystem::Operation& op) {
    return absl::StrContains(op.path, "shard-00000") ? absl::UnknownError("I/O error") : absl::OkStatus();
  });
  std::vector<float> weights = job.Array(0, 1, 2);
  CHECK(reader->LoadShard(job.model, 1, 2, {absl::MakeSpan(weights), {}}).ok());
  CHECK(!reader->LoadShard(job.model, 0, 2, {absl::MakeSpan(weights), {}}).ok());
  CHECK(!reader->Verify().ok());
}

TEST_CASE("Another model or optimizer is refused, with the first difference; weights alone ask for less") {
  FaultyFileSystem fs(1);
  const StoredJob job{TestModel(100), {"m", "v"}, 1};
  REQUIRE(job.Write(fs, "/c", 1, 1).ok());
  const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(fs, "/c/step-00000001");
  std::vector<float> a(100), b(100), c(100);
  const auto span = [](std::vector<float>& v) { return absl::MakeSpan(v); };

  ModelSpec other = job.model;
  other.tensors[3].name = "size";
  const CheckpointReader::Target all{span(a), {{"m", span(b)}, {"v", span(c)}}};
  CHECK(
      Says(reader->LoadShard(other, 0, 1, all).status(), "tensor 3: expected the name 'size', got 'größe'"));
  CHECK(Says(reader->LoadWeights(other, 0, 1, span(a)), "'size'"));
  other = job.model;
  other.tensors[0].init = Initializer::Zeros();
  CHECK(reader->LoadShard(other, 0, 1, all).status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(reader->LoadWeights(other, 0, 1, span(a)) == absl::OkStatus());
  const absl::Status slots = reader->LoadShard(job.model, 0, 1, {span(a), {{"v", span(b)}}}).status();
  CHECK(slots.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(Says(slots, "expected the slots [v], got [m, v]"));
  a.resize(99);
  CHECK(reader->LoadWeights(job.model, 0, 1, span(a)).code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("Names that a file cannot bear are refused before anything is written") {
  FaultyFileSystem fs(1);
  for (const std::string name : {"weir.x", "__metadata__", "\xff\xfe"}) {
    StoredJob job{TestModel(100), {}, 1};
    job.model.tensors[1].name = name;
    CHECK(!CheckTensorNames(job.model).ok());
    CHECK(fs.MakeFolder("/c").ok());
    CHECK(job.WriteShard(fs, "/c", 1, 0, 1).status().code() == absl::StatusCode::kInvalidArgument);
  }
  CHECK(CheckTensorNames(TestModel(100)).ok());
}

TEST_CASE("What does not fit together is not committed") {
  FaultyFileSystem fs(1);
  const StoredJob job{TestModel(1000), {"m"}, 1};
  REQUIRE(BeginCheckpoint(fs, "/c", 5).ok());
  const v1::CheckpointFile one = *job.WriteShard(fs, "/c", 5, 0, 2), two = *job.WriteShard(fs, "/c", 5, 1, 2);
  const auto commit = [&](const std::function<void(v1::CheckpointManifest&)>& spoil) {
    v1::CheckpointManifest manifest = job.Manifest(5);
    *manifest.add_files() = one;
    *manifest.add_files() = two;
    spoil(manifest);
    const absl::Status status = CommitCheckpoint(fs, "/c", manifest);
    CHECK(LatestComplete(fs, "/c").status().code() == absl::StatusCode::kNotFound);
    return status;
  };
  CHECK(Says(commit([](auto& m) { m.mutable_files()->RemoveLast(); }), "num_shards: expected 1, got 2"));
  CHECK(Says(commit([](auto& m) { m.clear_files(); }), "num_shards"));
  CHECK(Says(commit([&](auto& m) { *m.mutable_files(1) = one; }), "files[1].shard: expected 1, got 0"));
  CHECK(Says(commit([](auto& m) { m.mutable_files(1)->set_step(4); }), "files[1].step: expected 5, got 4"));
  CHECK(Says(commit([](auto& m) { m.mutable_files(1)->set_model_hash(4); }), "model_hash"));
  CHECK(Says(commit([](auto& m) { m.mutable_files(1)->clear_slots(); }), "slots: expected m, got "));
  CHECK(Says(commit([](auto& m) { m.mutable_files(1)->set_name("../x"); }), "name"));
  CHECK(
      Says(commit([](auto& m) { m.mutable_files(0)->mutable_tensors(2)->set_bytes(4); }), "bytes of tensor"));
  CHECK(Says(commit([](auto& m) { m.mutable_files(0)->set_crc32c(4); }), "crc32c"));
  CHECK(Says(commit([](auto& m) { m.mutable_files(0)->set_bytes(4); }), "bytes"));
  // In sync all shards are at the step.
  const auto sync = [](v1::CheckpointManifest& m) {
    m.mutable_job()->mutable_config()->mutable_consistency()->set_mode(v1::ConsistencyConfig::MODE_SYNC);
    m.mutable_job()->set_committed_steps(1001);
    m.mutable_files(1)->mutable_version()->set_count(1000);
  };
  CHECK(Says(commit(sync), "files[1].version.count: expected 1001, got 1000"));
  CHECK(Says(commit([](auto& m) { m.set_step(6); }), "step"));

  REQUIRE(fs.Remove("/c/step-00000005/" + two.name()).ok());
  const absl::Status missing = commit([](auto&) {});
  CHECK(missing.code() == absl::StatusCode::kNotFound);
  CHECK(Says(missing, "shard 1 has written it: all servers must see the same folder"));
}

TEST_CASE("What is committed stays: neither a second attempt nor a late writer changes it") {
  FaultyFileSystem fs(1);
  const StoredJob job{TestModel(1000), {"m"}, 1}, other{TestModel(1000), {"m"}, 2};
  // An attempt that failed, whose shard 1 was taken for dead but is only slow.
  REQUIRE(BeginCheckpoint(fs, "/c", 5).ok());
  REQUIRE(other.WriteShard(fs, "/c", 5, 0, 2, 6).ok());

  REQUIRE(job.Write(fs, "/c", 5, 2) == absl::OkStatus());
  CHECK(job.LoadAll(fs, "/c/step-00000005", 2) == absl::OkStatus());
  CHECK(other.WriteShard(fs, "/c", 5, 1, 2, 6).status().code() == absl::StatusCode::kAlreadyExists);
  CHECK(BeginCheckpoint(fs, "/c", 5).code() == absl::StatusCode::kAlreadyExists);
  CHECK(job.LoadAll(fs, "/c/step-00000005", 2) == absl::OkStatus());
  CHECK(fs.List("/c/step-00000005")->size() == 3);

  // The writer is slow between the last write and the rename: its temporary file stays until it is cleared
  // away.
  fs.SetFault([](const FaultyFileSystem::Operation& op) {
    const bool last =
        op.kind == FaultyFileSystem::Kind::kRename || op.kind == FaultyFileSystem::Kind::kRemove;
    return last ? absl::UnknownError("stopped") : absl::OkStatus();
  });
  CHECK(!other.WriteShard(fs, "/c", 5, 1, 2, 6).ok());
  fs.SetFault(nullptr);
  CHECK(fs.List("/c/step-00000005")->size() == 4);
  REQUIRE(RemoveOldCheckpoints(fs, "/c", 5, 1).ok());
  CHECK(fs.List("/c/step-00000005")->size() == 3);
  CHECK(job.LoadAll(fs, "/c/step-00000005", 2) == absl::OkStatus());
}

TEST_CASE("The newest that is whole is found; what is refused is named") {
  FaultyFileSystem fs(1);
  CHECK(FindCheckpoints(fs, "/c")->empty());
  CHECK(LatestComplete(fs, "/c").status().code() == absl::StatusCode::kNotFound);
  const StoredJob job{TestModel(100), {}, 1};
  for (uint64_t step : {10, 20, 30, 123456789}) REQUIRE(job.Write(fs, "/c", step, 2) == absl::OkStatus());
  REQUIRE(fs.MakeFolder("/c/step-40").ok());        // not a checkpoint's name
  REQUIRE(fs.MakeFolder("/c/step-00000050").ok());  // never completed
  (void)*fs.Create("/c/step-00000060");
  const std::vector<CheckpointEntry> found = *FindCheckpoints(fs, "/c");
  REQUIRE(found.size() == 5);
  CHECK(found[3].step == 50);
  CHECK(!found[3].has_manifest);
  CHECK(found[4].folder == "/c/step-123456789");
  CHECK(LatestComplete(fs, "/c")->folder == "/c/step-123456789");
  CHECK(ResolveCheckpoint(fs, "/c")->manifest.step() == 123456789);
  CHECK(ResolveCheckpoint(fs, "/c/step-00000010")->manifest.step() == 10);
  CHECK(!ResolveCheckpoint(fs, "/c/step-00000050").ok());

  fs.SetContents("/c/step-123456789/manifest.json", "{}");
  fs.SetContents("/c/step-00000030/shard-00001-of-00002.safetensors", "short");
  const absl::StatusOr<FoundCheckpoint> latest = LatestComplete(fs, "/c");
  REQUIRE(latest.ok());
  CHECK(latest->manifest.step() == 20);
  REQUIRE(latest->refused.size() == 2);
  CHECK(absl::StrContains(latest->refused[0], "/c/step-123456789/manifest.json: is damaged"));
  CHECK(
      absl::StrContains(latest->refused[1], "shard-00001-of-00002.safetensors: is damaged: it has 5 bytes"));
}

TEST_CASE("Old ones go, whole ones stay: damaged ones do not count") {
  FaultyFileSystem fs(1);
  const StoredJob job{TestModel(100), {}, 1};
  for (uint64_t step : {10, 20, 30, 40, 50}) REQUIRE(job.Write(fs, "/c", step, 2).ok());
  REQUIRE(fs.Remove("/c/step-00000030/manifest.json").ok());  // never completed, long ago
  fs.SetContents("/c/step-00000050/manifest.json", "{}");
  REQUIRE(BeginCheckpoint(fs, "/c", 60).ok());  // under way
  REQUIRE(job.WriteShard(fs, "/c", 60, 0, 2).ok());
  (void)*fs.Create("/c/step-00000010/notes.txt");  // a user's file
  REQUIRE(RemoveOldCheckpoints(fs, "/c", 60, 2) == absl::OkStatus());
  CHECK(*fs.List("/c") == std::vector<std::string>{"step-00000010", "step-00000020", "step-00000040",
                                                   "step-00000050", "step-00000060"});
  CHECK(*fs.List("/c/step-00000010") == std::vector<std::string>{"notes.txt"});
  CHECK(fs.List("/c/step-00000060")->size() == 1);
  REQUIRE(RemoveOldCheckpoints(fs, "/c", 60, 1) == absl::OkStatus());
  CHECK(LatestComplete(fs, "/c")->manifest.step() == 40);
  CHECK(FindCheckpoints(fs, "/c")->size() == 4);
  REQUIRE(RemoveCheckpoint(fs, "/c/step-00000040").ok());
  CHECK(RemoveCheckpoint(fs, "/c/step-00000040").ok());
  CHECK(!LatestComplete(fs, "/c").ok());
}

TEST_CASE("The best one stays as long as it is the best, and DIR/best is its path") {
  FaultyFileSystem fs(1);
  const StoredJob job{TestModel(100), {}, 1};
  const auto write = [&](uint64_t step, std::optional<uint64_t> best) {
    REQUIRE(job.Write(fs, "/c", step, 1, best) == absl::OkStatus());
    REQUIRE(RemoveOldCheckpoints(fs, "/c", step, 2, best) == absl::OkStatus());
  };
  write(10, std::nullopt);
  CHECK(absl::IsNotFound(ResolveCheckpoint(fs, "/c/best").status()));
  write(20, 20);
  for (uint64_t step : {30, 40, 50}) write(step, 20);
  CHECK(*fs.List("/c") == std::vector<std::string>{"step-00000020", "step-00000040", "step-00000050"});
  REQUIRE(ResolveCheckpoint(fs, "/c/best").ok());
  CHECK(ResolveCheckpoint(fs, "/c/best")->folder == "/c/step-00000020");
  CHECK(ResolveCheckpoint(fs, "/c/best")->manifest.step() == 20);
  CHECK(ResolveCheckpoint(fs, "/c")->manifest.step() == 50);
  CHECK(*FolderOfStep(fs, "/c/best", 20) == "/c/step-00000020");
  CHECK(*FolderOfStep(fs, "/c", 40) == "/c/step-00000040");
  CHECK(*FolderOfStep(fs, "/c/step-00000040", 40) == "/c/step-00000040");
  write(60, 60);
  CHECK(*fs.List("/c") == std::vector<std::string>{"step-00000050", "step-00000060"});
  CHECK(ResolveCheckpoint(fs, "/c/best")->manifest.step() == 60);
}

// The text with the replacement, and the checksum of the new text.
std::string Resealed(std::string manifest, const std::string& from, const std::string& to) {
  manifest = absl::StrReplaceAll(manifest, {{from, to}});
  const size_t end = manifest.rfind(",\n\"crc32c\": ");
  manifest.resize(end);
  return absl::StrFormat("%s,\n\"crc32c\": \"%08x\"\n}\n", manifest, Crc32c(manifest));
}

TEST_CASE("A manifest with the right checksum is not trusted either") {
  FaultyFileSystem fs(1);
  const StoredJob job{TestModel(100), {}, 1};
  REQUIRE(job.Write(fs, "/c", 1, 2).ok());
  const std::string path = "/c/step-00000001/manifest.json", manifest = fs.Contents(path);
  const auto open = [&](const std::string& from, const std::string& to) {
    REQUIRE(absl::StrContains(manifest, from));
    fs.SetContents(path, Resealed(manifest, from, to));
    return CheckpointReader::Open(fs, "/c/step-00000001").status();
  };
  CHECK(open("\"format\"", "\"format\"").ok());
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"\"num_shards\": 2", "\"num_shards\": 4294967295"},
           {"\"num_shards\": 2", "\"num_shards\": 0"},
           {"\"block_size\": 16", "\"block_size\": 32"},
           {"\"header_bytes\": ", "\"header_bytes\": 18446744073709551"},
           {"shard-00000-of-00002", "../../etc/passwd-000"},
           {"\"format\": 1,\n  \"step\": 1,", "\"format\": 1,\n  \"step\": 2,"},
           {"\"manifest\"", "\"manifesto\""},
           {"\"format\"", "\"formal\""},
           {"größe", "groesse"}}) {
    const absl::Status status = open(from, to);
    INFO(from << " -> " << to << ": " << status);
    CHECK(status.code() == absl::StatusCode::kDataLoss);
    CHECK(absl::StrContains(status.message(), path));
  }
}

TEST_CASE("A header that no file can have is refused before memory is taken for it") {
  FaultyFileSystem fs(1);
  const StoredJob job{TestModel(100), {}, 1};
  REQUIRE(job.Write(fs, "/c", 1, 1).ok());
  const std::string path = "/c/step-00000001/manifest.json", manifest = fs.Contents(path);
  const v1::CheckpointFile file = CheckpointReader::Open(fs, "/c/step-00000001")->manifest().files(0);
  const uint64_t tensors = file.bytes() - file.header_bytes();
  // With the tensors' bytes the sum overflows 64 bits to the length of the file.
  fs.SetContents("/c/step-00000001/" + file.name(), "12345");
  std::string wrapped = Resealed(manifest, absl::StrCat("\"bytes\": ", file.bytes(), ","), "\"bytes\": 5,");
  wrapped = Resealed(wrapped, absl::StrCat("\"header_bytes\": ", file.header_bytes()),
                     absl::StrCat("\"header_bytes\": ", 5 - tensors));
  fs.SetContents(path, wrapped);
  std::vector<float> weights(100);
  const auto load = [&] {
    const auto reader = CheckpointReader::Open(fs, "/c/step-00000001");
    return reader.ok() ? reader->LoadWeights(job.model, 0, 1, absl::MakeSpan(weights)) : reader.status();
  };
  CHECK(load().code() == absl::StatusCode::kDataLoss);
  CHECK(Says(load(), "header_bytes: must be in [8, 100000008], got 18446744073709"));
}

// The manifest as in format 1.0.
std::string WithoutMinor(const std::string& manifest) {
  const std::string minor = ",\n  \"format_minor\": 6";
  REQUIRE(absl::StrContains(manifest, minor));
  return absl::StrReplaceAll(manifest, {{minor, ""}});
}

TEST_CASE("A later minor version's fields are ignored, wherever they are") {
  FaultyFileSystem fs(1);
  const StoredJob job{TestModel(100), {"m"}, 1};
  for (uint64_t step : {10, 20}) REQUIRE(job.Write(fs, "/c", step, 2).ok());
  const std::string path = "/c/step-00000020/manifest.json", manifest = WithoutMinor(fs.Contents(path));
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"\"format\": 1,", "\"format\": 1, \"novelty\": {\"of\": [1, \"kind\"]},"},
           {"\"format\": 1,", "\"format\": 1, \"format_minor\": 7, \"novelty\": 3,"},
           {"\"job\": {", "\"job\": {\"novelty\": true,"},
           {"\"header_bytes\": ", "\"novelty\": null, \"header_bytes\": "}}) {
    INFO(from << " -> " << to);
    REQUIRE(absl::StrContains(manifest, from));
    fs.SetContents(path, Resealed(manifest, from, to));
    const auto latest = LatestComplete(fs, "/c");
    REQUIRE(latest.ok());
    CHECK(latest->refused.empty());
    CHECK(latest->manifest.step() == 20);
    const auto reader = CheckpointReader::Open(fs, "/c/step-00000020");
    CHECK(reader->Verify().ok());
    // Data that differ from their checksum are damaged as before.
    std::string damaged = fs.Contents(path);
    damaged[damaged.find("novelty")] = 'N';
    fs.SetContents(path, damaged);
    CHECK(LatestComplete(fs, "/c")->manifest.step() == 10);
  }
}

TEST_CASE("A checkpoint that only a newer program can read is never passed over for an older one") {
  FaultyFileSystem fs(1);
  const StoredJob job{TestModel(100), {"m"}, 1};
  for (uint64_t step : {10, 20, 30}) REQUIRE(job.Write(fs, "/c", step, 2).ok());
  const std::string path = "/c/step-00000020/manifest.json", manifest = WithoutMinor(fs.Contents(path));
  fs.SetContents("/c/step-00000030/manifest.json", "{}");  // damaged
  const auto refused = [&](const std::string& from, const std::string& to) {
    REQUIRE(absl::StrContains(manifest, from));
    fs.SetContents(path, Resealed(manifest, from, to));
    const absl::Status status = LatestComplete(fs, "/c").status();
    CHECK(CheckpointReader::Open(fs, "/c/step-00000020").status() == status);
    CHECK(ResolveCheckpoint(fs, "/c").status() == status);
    CHECK(status.code() == absl::StatusCode::kUnimplemented);
    return status;
  };
  CHECK(Says(refused("\"format\": 1,", "\"format\": 2, \"format_minor\": 3,"),
             path + ": this checkpoint has format 2.3; this Weir reads formats up to 1.x. Use the version"));
  CHECK(Says(refused("\"format\": 1,", "\"format\": 3, \"all\": \"else\","), "has format 3.0"));
  // A later minor version with a value that this program does not know.
  CHECK(
      Says(refused("\"block_size\": 16", "\"format_minor\": 7, \"block_size\": \"auto\""), "has format 1.7"));
}

}  // namespace
}  // namespace weir
