// Files, folders and checkpoints in object storage.
#include "common/object_store/object_file_system.h"

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/checkpoint_writer.h"
#include "common/object_store/object_store.h"
#include "tests/common/checkpoint/checkpoint_fixture.h"
#include "tests/common/object_store/s3_server.h"

namespace weir {
namespace {

using Catch::Contains;
using Code = absl::StatusCode;
using Existing = FileSystem::Existing;
using Names = std::vector<std::string>;

S3Server& Server() {
  static S3Server* const server = new S3Server;
  return *server;
}

ObjectStore& Store() {
  static ObjectStore* const store = new ObjectStore(Server().options());
  return *store;
}

FileSystem& Files() {
  static FileSystem* const files =
      NewObjectFileSystem(std::make_unique<ObjectStore>(Server().options())).release();
  return *files;
}

std::string Path(const std::string& name) { return absl::StrCat("s3://", S3Server::kBucket, "/", name); }

absl::Status Write(const std::string& path, absl::string_view data, Existing existing) {
  auto file = Files().Stage(path, path + ".tmp");
  if (!file.ok()) return file.status();
  const absl::Status written = (*file)->Append(data);
  return (*file)->Publish(written, existing);
}

TEST_CASE("A file in object storage is there once it is published") {
  const std::string path = Path("files/a/file");
  auto file = *Files().Stage(path, "unused");
  REQUIRE(file->Append("some ").ok());
  REQUIRE(file->Append("content").ok());
  CHECK(Files().Open(path).status().code() == Code::kNotFound);
  CHECK(Files().List(Path("files")).status().code() == Code::kNotFound);
  REQUIRE(file->Publish(absl::OkStatus(), Existing::kKeep) == absl::OkStatus());
  CHECK(*Files().ReadFile(path, 100) == "some content");
  CHECK(*Files().List(Path("files")) == Names{"a"});
  CHECK(*Files().List(Path("files/a/")) == Names{"file"});

  CHECK(Write(path, "other", Existing::kKeep).code() == Code::kAlreadyExists);
  CHECK(*Files().ReadFile(path, 100) == "some content");
  REQUIRE(Write(path, "other", Existing::kReplace) == absl::OkStatus());
  CHECK(*Files().ReadFile(path, 100) == "other");
  const absl::Status failed = absl::DataLossError("why");
  CHECK((*Files().Stage(path, ""))->Publish(failed, Existing::kReplace) == failed);
  CHECK(*Files().ReadFile(path, 100) == "other");
  char more[10];
  CHECK((*Files().Open(path))->Read(0, absl::MakeSpan(more)).code() == Code::kDataLoss);

  CHECK(Write(Path("files/empty"), "", Existing::kKeep).code() == Code::kInvalidArgument);
  CHECK(Files().Create(path).status().code() == Code::kUnimplemented);
  CHECK(Files().RemoveFolder(Path("files/a")).code() == Code::kFailedPrecondition);
  REQUIRE(Files().Remove(path).ok());
  CHECK(Files().RemoveFolder(Path("files/a")) == absl::OkStatus());
}

TEST_CASE("A long file goes in parts, and what was not published leaves nothing") {
  const std::string path = Path("long/file");
  std::string data(17 << 20, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7 + (i >> 13));
  REQUIRE(Write(path, data, Existing::kKeep) == absl::OkStatus());
  const auto open = *Files().Open(path);
  REQUIRE(open->size() == data.size());
  std::string read(data.size(), '\0');
  // In pieces that lie across the parts, and all at once.
  for (size_t at = 0; at < data.size(); at += 1'000'003) {
    const size_t n = std::min<size_t>(1'000'003, data.size() - at);
    REQUIRE(open->Read(at, absl::MakeSpan(&read[at], n)) == absl::OkStatus());
  }
  CHECK((read == data));
  read.assign(data.size(), '\0');
  REQUIRE(open->Read(0, absl::MakeSpan(&read[0], read.size())) == absl::OkStatus());
  CHECK((read == data));

  CHECK(Write(path, data, Existing::kKeep).code() == Code::kAlreadyExists);
  auto dropped = *Files().Stage(Path("long/dropped"), "");
  REQUIRE(dropped->Append(data) == absl::OkStatus());
  CHECK(Store().Unfinished(S3Server::kBucket, "long/")->size() == 1);
  dropped.reset();
  CHECK(Store().Unfinished(S3Server::kBucket, "long/")->empty());

  // A process that died in the middle.
  auto left = *Store().Begin({S3Server::kBucket, "long/left/file"});
  REQUIRE(Store().PutPart(left, 1, "x").ok());
  CHECK(Files().RemoveFolder(Path("long/left")) == absl::OkStatus());
  CHECK(Store().Unfinished(S3Server::kBucket, "long/")->empty());

  // The object changes while it is read.
  REQUIRE(Write(path, "short", Existing::kReplace).ok());
  char byte[1];
  CHECK(open->Read(16 << 20, absl::MakeSpan(byte)).ok());  // read before
  CHECK(open->Read(0, absl::MakeSpan(byte)).code() == Code::kAborted);
}

TEST_CASE("A reserved name is no file, and is lost with the reservation") {
  const std::string path = Path("reserved/file");
  REQUIRE(Files().Reserve(path) == absl::OkStatus());
  CHECK(Files().Reserve(path).code() == Code::kAlreadyExists);
  CHECK(*Files().List(Path("reserved")) == Names{});
  CHECK(Files().Open(path).status().code() == Code::kNotFound);
  auto late = *Files().Stage(path, "");
  REQUIRE(late->Append("late").ok());
  REQUIRE(Files().Remove(path).ok());
  CHECK(late->Publish(absl::OkStatus(), Existing::kKeep).code() == Code::kAborted);
  CHECK(Files().List(Path("reserved")).status().code() == Code::kNotFound);

  REQUIRE(Files().Reserve(path).ok());
  auto first = *Files().Stage(path, "");
  auto second = *Files().Stage(path, "");
  REQUIRE(first->Append("first").ok());
  REQUIRE(second->Append("second").ok());
  REQUIRE(second->Publish(absl::OkStatus(), Existing::kKeep) == absl::OkStatus());
  CHECK(first->Publish(absl::OkStatus(), Existing::kKeep).code() == Code::kAborted);
  CHECK(*Files().ReadFile(path, 100) == "second");
}

// Writes a checkpoint as an attempt of this number.
absl::Status WriteAttempt(const StoredJob& job, const std::string& dir, uint64_t step, uint64_t attempt,
                          uint32_t num_shards) {
  if (absl::Status begun = BeginAttempt(Files(), dir, step, attempt); !begun.ok()) return begun;
  v1::CheckpointManifest manifest = job.Manifest(step);
  for (uint32_t shard = 0; shard < num_shards; ++shard) {
    auto file = job.WriteShard(Files(), dir, step, shard, num_shards);
    if (!file.ok()) return file.status();
    *manifest.add_files() = *file;
  }
  return CommitCheckpoint(Files(), dir, manifest);
}

TEST_CASE("A checkpoint in object storage is found, loaded, exported and removed") {
  const StoredJob job{TestModel(500), {"m"}, 1, {TestTable("clicks", 2)}, 5};
  const StoredJob later{TestModel(500), {"m"}, 2, {TestTable("clicks", 2)}, 5};
  const std::string dir = Path("runs/7");
  CHECK(LatestComplete(Files(), dir).status().code() == Code::kNotFound);
  REQUIRE(WriteAttempt(job, dir, 5, 11, 3) == absl::OkStatus());
  REQUIRE(WriteAttempt(later, dir, 6, 14, 2) == absl::OkStatus());
  const auto newest = LatestComplete(Files(), dir);
  REQUIRE(newest.status() == absl::OkStatus());
  CHECK(newest->folder == dir + "/step-00000006.14");
  CHECK(later.LoadAll(Files(), newest->folder, 2) == absl::OkStatus());
  CHECK(job.LoadAll(Files(), *CompleteFolder(Files(), dir, 5), 4) == absl::OkStatus());
  // As messages name it, and as it is.
  for (const std::string name : {"/step-00000005", "/step-00000005.11"}) {
    const auto found = ResolveCheckpoint(Files(), dir + name);
    REQUIRE(found.status() == absl::OkStatus());
    CHECK(found->folder == dir + "/step-00000005.11");
    CHECK(*FolderOfStep(Files(), dir + name, 5) == dir + "/step-00000005.11");
  }

  // A new attempt takes the place of an old one, and is no checkpoint until it is complete.
  REQUIRE(BeginAttempt(Files(), dir, 6, 20) == absl::OkStatus());
  CHECK(LatestComplete(Files(), dir)->folder == dir + "/step-00000005.11");
  CHECK(*FindFolder(Files(), dir, 6) == dir + "/step-00000006.20");
  CHECK(FindFolder(Files(), dir, 7).status().code() == Code::kNotFound);
  REQUIRE(DiscardCheckpoint(Files(), dir + "/step-00000006.20") == absl::OkStatus());
  CHECK(*Files().List(dir) == Names{"step-00000005.11"});
  REQUIRE(WriteAttempt(later, dir, 7, 21, 1) == absl::OkStatus());
  REQUIRE(DiscardCheckpoint(Files(), dir + "/step-00000007.21") == absl::OkStatus());  // it is complete
  REQUIRE(RemoveOldCheckpoints(Files(), dir, 7, 1) == absl::OkStatus());
  CHECK(*Files().List(dir) == Names{"step-00000007.21"});

  // An older attempt cannot be completed any more, however late.
  REQUIRE(BeginAttempt(Files(), dir, 8, 30) == absl::OkStatus());
  auto manifest = *Files().Stage(dir + "/step-00000008.30/manifest.json", "");
  REQUIRE(manifest->Append("late").ok());
  REQUIRE(BeginAttempt(Files(), dir, 8, 31) == absl::OkStatus());
  CHECK(manifest->Publish(absl::OkStatus(), Existing::kKeep).code() == Code::kAborted);
}

TEST_CASE("Paths lead to the disk or to object storage") {
  for (const auto& [name, value] : Server().environment()) setenv(name.c_str(), value.c_str(), 1);
  FileSystem& any = AnyStorage();
  const std::string folder = std::getenv("TEST_TMPDIR");
  const StoredJob job{TestModel(100), {}, 3};
  REQUIRE(WriteAttempt(job, Path("any"), 1, 1, 2) == absl::OkStatus());
  const auto found = ResolveCheckpoint(any, Path("any"));
  REQUIRE(found.status() == absl::OkStatus());
  const auto reader = CheckpointReader::Open(any, found->folder);
  REQUIRE(reader.status() == absl::OkStatus());
  CHECK(reader->Verify() == absl::OkStatus());
  REQUIRE(reader->Export(folder + "/out.safetensors").status() == absl::OkStatus());
  CHECK((*FileSystem::Posix().Open(folder + "/out.safetensors"))->size() > 400);
  REQUIRE(reader->Export(Path("exported/out.safetensors")).status() == absl::OkStatus());
  CHECK((*any.ReadFile(Path("exported/out.safetensors"), 1 << 20) ==
         *any.ReadFile(folder + "/out.safetensors", 1 << 20)));
  CHECK(any.HoldsFolders(folder));
  CHECK_FALSE(any.HoldsFolders(Path("any")));
  CHECK_THAT(std::string(any.List("s3://B").status().message()), Contains("must be s3://BUCKET/PREFIX"));
}

}  // namespace
}  // namespace weir
