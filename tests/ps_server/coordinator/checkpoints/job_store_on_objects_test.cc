// The coordinator's store in object storage: coordinators that are replaced while they hang, and faults
// between the store and a real S3 server.
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/checkpoint_writer.h"
#include "common/model/partition.h"
#include "common/model/wire_model.h"
#include "common/object_store/object_file_system.h"
#include "common/object_store/object_store.h"
#include "ps_server/coordinator/checkpoints/job_store.h"
#include "tests/common/object_store/s3_server.h"
#include "tests/share.h"

namespace weir {
namespace {

constexpr uint32_t kShards = 2;

S3Server& Server() {
  static S3Server* const server = new S3Server;
  return *server;
}

ModelSpec Model(int64_t elements) {
  return {{{"w", {elements}, TensorKind::kParameter, Initializer::Zeros()}}};
}

// A job's folder, as one process sees it.
struct Job {
  FileSystem* files;
  std::string directory;
  ModelSpec model;
};

// Opens a store that does blocking work at once.
absl::StatusOr<std::unique_ptr<JobStore>> Open(const Job& job) {
  JobStoreOnDisk::Options options;
  options.file_system = job.files;
  options.directory = job.directory;
  options.keep = 2;
  options.certainly_runs = [](const v1::FolderHolder&) { return false; };
  options.run = [](const std::function<void()>& work) { work(); };
  return JobStoreOnDisk::Open(std::move(options));
}

absl::Status Begin(JobStore& store, uint64_t step) {
  absl::Status result = absl::UnknownError("no answer");
  store.Begin(step, [&](absl::Status status) { result = std::move(status); });
  return result;
}

// Writes the files of all shards, with this value in every element.
absl::StatusOr<v1::CheckpointManifest> WriteShards(const Job& job, uint64_t step, float value) {
  v1::CheckpointManifest manifest;
  manifest.set_step(step);
  *manifest.mutable_model() = ToProto(job.model);
  manifest.mutable_job()->set_committed_steps(step);
  const Partition partition(job.model.elements(), kShards);
  for (uint32_t shard = 0; shard < kShards; ++shard) {
    const std::vector<float> weights(static_cast<size_t>(partition.shard_elements(shard)), value);
    ShardSnapshot snapshot;
    snapshot.model = job.model;
    snapshot.state.set_shard(shard);
    snapshot.state.set_num_shards(kShards);
    snapshot.state.mutable_version()->set_incarnation(7);
    snapshot.state.mutable_version()->set_count(step);
    snapshot.weights = weights;
    auto file = WriteShardFile(*job.files, job.directory, step, snapshot);
    if (!file.ok()) return file.status();
    *manifest.add_files() = *file;
  }
  return manifest;
}

absl::Status Commit(JobStore& store, const absl::StatusOr<v1::CheckpointManifest>& manifest) {
  if (!manifest.ok()) return manifest.status();
  absl::Status result = absl::UnknownError("no answer");
  store.Commit(*manifest, [&](absl::Status status) { result = std::move(status); });
  if (!result.ok()) store.Discard(manifest->step());
  return result;
}

absl::Status Save(JobStore& store, const Job& job, uint64_t step, float value) {
  const absl::Status begun = Begin(store, step);
  return begun.ok() ? Commit(store, WriteShards(job, step, value)) : begun;
}

// The value of every element of each checkpoint that counts, by step. No step has two manifests, and each
// checkpoint is whole.
std::map<uint64_t, float> Checkpoints(const Job& job) {
  std::map<uint64_t, float> values;
  std::set<uint64_t> manifests;
  const auto entries = FindCheckpoints(*job.files, job.directory);
  REQUIRE(entries.status() == absl::OkStatus());
  for (const CheckpointEntry& entry : *entries) {
    INFO(entry.folder);
    if (!entry.has_manifest) continue;
    REQUIRE(manifests.insert(entry.step).second);
    const auto reader = CheckpointReader::Open(*job.files, entry.folder);
    REQUIRE(reader.status() == absl::OkStatus());
    REQUIRE(reader->Verify() == absl::OkStatus());
    std::vector<float> weights(static_cast<size_t>(job.model.elements()));
    REQUIRE(reader->LoadWeights(job.model, 0, 1, absl::MakeSpan(weights)) == absl::OkStatus());
    REQUIRE(std::all_of(weights.begin(), weights.end(), [&](float w) { return w == weights[0]; }));
    values[entry.step] = weights[0];
  }
  return values;
}

// A process hangs before its `at`-th operation on files, until `meanwhile` is over.
struct Hang {
  FileSystem& files;
  const int at;
  const std::function<void()> meanwhile;
  int count = 0;

  bool over() const { return count > at; }
  void Operation() {
    if (count++ == at) meanwhile();
  }
};

class HangingFile final : public StagedFile {
 public:
  HangingFile(Hang& hang, std::unique_ptr<StagedFile> inner) : hang_(hang), inner_(std::move(inner)) {}
  absl::Status Append(absl::string_view data) override { return inner_->Append(data); }
  absl::Status Sync() override { return inner_->Sync(); }
  absl::Status Close() override { return inner_->Close(); }
  absl::Status Publish(absl::Status written, Existing existing) override {
    hang_.Operation();
    return inner_->Publish(std::move(written), existing);
  }

 private:
  Hang& hang_;
  const std::unique_ptr<StagedFile> inner_;
};

// The files as that process sees them. Calls that take no request to the object storage do not count as
// operations.
class HangingFiles final : public FileSystem {
 public:
  explicit HangingFiles(Hang& hang) : hang_(hang) {}
  absl::StatusOr<std::unique_ptr<FileSystem>> OpenFolder(const std::string& path) override {
    return std::unique_ptr<FileSystem>(std::make_unique<HangingFiles>(hang_));
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path, Existing existing) override {
    return hang_.files.Create(path, existing);
  }
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    hang_.Operation();
    return hang_.files.Open(path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return hang_.files.Rename(from, to);
  }
  absl::Status RenameNew(const std::string& from, const std::string& to) override {
    return hang_.files.RenameNew(from, to);
  }
  absl::Status Remove(const std::string& path) override {
    hang_.Operation();
    return hang_.files.Remove(path);
  }
  absl::Status MakeFolder(const std::string& path) override { return hang_.files.MakeFolder(path); }
  absl::Status RemoveFolder(const std::string& path) override {
    hang_.Operation();
    return hang_.files.RemoveFolder(path);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    hang_.Operation();
    return hang_.files.List(folder);
  }
  absl::Status SyncFolder(const std::string& folder) override { return hang_.files.SyncFolder(folder); }
  bool HoldsFolders(const std::string& path) const override { return hang_.files.HoldsFolders(path); }
  absl::Status Reserve(const std::string& path) override {
    hang_.Operation();
    return hang_.files.Reserve(path);
  }
  absl::StatusOr<std::unique_ptr<StagedFile>> Stage(const std::string& path,
                                                    const std::string& temporary) override {
    hang_.Operation();
    auto staged = hang_.files.Stage(path, temporary);
    if (!staged.ok()) return staged;
    return std::unique_ptr<StagedFile>(std::make_unique<HangingFile>(hang_, *std::move(staged)));
  }

 private:
  Hang& hang_;
};

std::unique_ptr<FileSystem> Files(ObjectStore::Options options) {
  return NewObjectFileSystem(std::make_unique<ObjectStore>(std::move(options)));
}

TEST_CASE("A coordinator that hangs in any operation and is replaced changes nothing any more") {
  if (ThisShare().index > 0) return;  // the first share runs it
  const auto files = Files(Server().options());
  for (int at = 0;; ++at) {
    INFO("hung before operation " << at);
    const Job job{files.get(), absl::StrCat("s3://", S3Server::kBucket, "/hang/", at), Model(40)};
    std::unique_ptr<JobStore> next;
    bool again = false;
    Hang hang{*files, at, [&] {
                auto opened = Open(job);
                REQUIRE(opened.status() == absl::OkStatus());
                next = *std::move(opened);
                REQUIRE(next->opened().newest.has_value());
                // The old store may have committed step 6 already. Then that checkpoint counts.
                again = next->opened().newest->step() == 5;
                REQUIRE(Save(*next, job, again ? 6 : 7, 3) == absl::OkStatus());
              }};
    HangingFiles hanging(hang);
    const Job old_view{&hanging, job.directory, job.model};
    REQUIRE(Save(**Open(job), job, 5, 1) == absl::OkStatus());
    const auto old = Open(old_view);
    // If the old store hung before it had claimed the folder, the other one came first, and is replaced.
    if (old.ok() && next != nullptr &&
        (*old)->opened().coordinator_incarnation > next->opened().coordinator_incarnation) {
      CHECK((*old)->opened().newest->step() == 6);
      CHECK(absl::IsAborted(Begin(*next, 9)));
      continue;
    }
    absl::Status saved = old.status();
    if (old.ok()) saved = Save(**old, old_view, 6, 2);
    if (!hang.over()) {
      REQUIRE(saved == absl::OkStatus());
      CHECK(at > 30);
      break;
    }
    INFO(saved);
    if (again) CHECK_FALSE(saved.ok());
    std::map<uint64_t, float> there = Checkpoints(job);
    CHECK(there.rbegin()->first == (again ? 6 : 7));
    CHECK(there.rbegin()->second == 3);
    if (!again) CHECK(there.at(6) == 2);
    // The old store can no longer change anything.
    if (old.ok()) CHECK(absl::IsAborted(Begin(**old, 9)));
    const auto last = Open(job);
    REQUIRE(last.status() == absl::OkStatus());
    CHECK((*last)->opened().newest->step() == (again ? 6 : 7));
    CHECK((*last)->opened().coordinator_incarnation > next->opened().coordinator_incarnation);
    CHECK((*last)->opened().used.epoch >= next->opened().reserved.epoch);
  }
}

// A manifest whose put is on its way, while requests to remove its reservation fail, and the next checkpoint
// begins.
TEST_CASE("A manifest that comes very late is of no checkpoint") {
  if (ThisShare().index > 0) return;  // the first share runs it
  const auto files = Files(Server().options());
  ObjectStore::Options one_try = Server().options();
  one_try.limit = absl::ZeroDuration();
  const auto hasty = Files(one_try);
  const Job job{files.get(), absl::StrCat("s3://", S3Server::kBucket, "/late"), Model(40)};
  const Job old_view{hasty.get(), job.directory, job.model};
  const auto old = *Open(old_view);
  REQUIRE(Save(*old, old_view, 5, 1) == absl::OkStatus());
  REQUIRE(Begin(*old, 6) == absl::OkStatus());
  const auto manifest = WriteShards(old_view, 6, 2);
  // libcurl itself sends a put again if the connection was used before.
  std::string faults = "next=DELETE:500";
  for (int i = 0; i < 8; ++i) faults += ",PUT~step-00000006:held";
  Server().SetFaults(faults);
  CHECK(absl::IsUnavailable(Commit(*old, manifest)));
  CHECK_THAT(Server().Counts(), Catch::Contains(R"("held": )") && Catch::Contains(R"("500": 1)"));
  REQUIRE(Begin(*old, 7) == absl::OkStatus());
  const auto next = *Open(job);
  CHECK(next->opened().newest->step() == 5);
  Server().SetFaults("");  // it comes now
  CHECK(Checkpoints(job) == std::map<uint64_t, float>{{5, 1}});
}

// A reservation whose put comes twice, the second time after its removal.
TEST_CASE("A reservation that comes twice holds no name for a manifest that comes late") {
  if (ThisShare().index > 0) return;  // the first share runs it
  ObjectStore::Options options = Server().options();
  options.limit = absl::Milliseconds(1);  // three tries
  const auto files = Files(options);
  const Job job{files.get(), absl::StrCat("s3://", S3Server::kBucket, "/twice"), Model(40)};
  const auto store = *Open(job);
  REQUIRE(Save(*store, job, 5, 1) == absl::OkStatus());
  std::string faults = "next=PUT~manifest.json:repeated,PUT~manifest.json:slow";
  for (int i = 0; i < 8; ++i) faults += ",PUT~manifest.json:held";
  Server().SetFaults(faults);
  REQUIRE(Begin(*store, 6) == absl::OkStatus());
  CHECK(absl::IsUnavailable(Commit(*store, WriteShards(job, 6, 2))));
  CHECK_THAT(Server().Counts(), Catch::Contains(R"("repeated": 1, "slow": 1, "held": )"));
  Server().SetFaults("");  // the reservation comes again, then the manifest
  CHECK(Checkpoints(job) == std::map<uint64_t, float>{{5, 1}});
  REQUIRE(Save(*store, job, 7, 3) == absl::OkStatus());
  CHECK(Checkpoints(job) == std::map<uint64_t, float>{{5, 1}, {7, 3}});
}

TEST_CASE("Object storage that ignores conditions is refused") {
  if (ThisShare().index > 0) return;  // the first share runs it
  const auto files = Files(Server().options());
  const Job job{files.get(), absl::StrCat("s3://", S3Server::kBucket, "/unconditional"), Model(40)};
  Server().SetFaults("rate=1&kinds=unconditional");
  const absl::Status refused = Open(job).status();
  Server().SetFaults("");
  CHECK(refused.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(refused.message()),
             Catch::Contains("ignores the conditions of puts (If-None-Match)"));
  CHECK(absl::IsNotFound(files->List(job.directory).status()));
  CHECK(Open(job).status() == absl::OkStatus());
}

// A random run of coordinators that replace each other, with faults on every way to the server.
class Schedule {
 public:
  explicit Schedule(uint64_t seed) : random_(RandomKey(seed, "schedule"), 0) {
    ObjectStore::Options options = Server().options();
    // In some runs the first failure is final, as for a process that dies.
    options.limit = random_.NextBelow(3) == 0 ? absl::ZeroDuration() : absl::Seconds(5);
    files_ = Files(options);
    // In some runs a shard's file goes in parts.
    const int64_t elements = seed % 40 == 0 ? 5'000'000 : 40;
    job_ = {files_.get(), absl::StrCat("s3://", S3Server::kBucket, "/schedule/", seed), Model(elements)};
    Server().SetFaults(absl::StrCat("seed=", seed, "&rate=0.", 1 + random_.NextBelow(3)));
  }

  void Run() {
    for (int round = 0; round < 4; ++round) {
      if (store_ == nullptr && !(store_ = TakeOver())) continue;
      const uint64_t step = step_ + 1;
      const float value = ++values_;
      if (random_.NextBelow(3) > 0) {
        Note(step, value, Save(*store_, job_, step, value));
        continue;
      }
      // A second coordinator comes at some point of a checkpoint and saves the same step. Then the first one
      // continues.
      const uint32_t point = random_.NextBelow(2);
      std::unique_ptr<JobStore> old = std::move(store_);
      const absl::Status begun = Begin(*old, step);
      if (point == 0) store_ = TakeOver();
      const auto manifest = begun.ok() ? WriteShards(job_, step, value) : begun;
      if (point == 1) store_ = TakeOver();
      if (store_ != nullptr && random_.NextBelow(2) == 0) {
        const float other = ++values_;
        Note(step, other, Save(*store_, job_, step, other));
      }
      const absl::Status late = Commit(*old, manifest);
      if (store_ != nullptr) {
        CHECK_FALSE(late.ok());
      } else {
        Note(step, value, late);
      }
    }
    store_ = nullptr;
    Server().SetFaults("");
    Check();
  }

  int committed() const { return static_cast<int>(committed_.size()); }

 private:
  std::unique_ptr<JobStore> TakeOver() {
    auto opened = Open(job_);
    if (!opened.ok()) return nullptr;
    const auto& newest = (*opened)->opened().newest;
    const uint64_t step = newest.has_value() ? newest->step() : 0;
    // If a coordinator was told that a checkpoint is durable, the checkpoint is never lost.
    CHECK(step >= (committed_.empty() ? 0 : committed_.rbegin()->first));
    step_ = step;
    return *std::move(opened);
  }

  void Note(uint64_t step, float value, const absl::Status& saved) {
    attempted_[step].insert(value);
    if (!saved.ok()) return;
    CHECK(committed_.emplace(step, value).second);
    step_ = step;
  }

  void Check() {
    const auto files = Files(Server().options());
    const Job job{files.get(), job_.directory, job_.model};
    const std::map<uint64_t, float> there = Checkpoints(job);
    for (const auto& [step, value] : there) {
      INFO("step " << step);
      CHECK(attempted_[step].count(value) == 1);
      if (committed_.count(step) > 0) CHECK(value == committed_.at(step));
    }
    if (!committed_.empty()) CHECK(there.count(committed_.rbegin()->first) == 1);
    // The job can continue.
    const auto last = Open(job);
    REQUIRE(last.status() == absl::OkStatus());
    const auto& newest = (*last)->opened().newest;
    const uint64_t step = newest.has_value() ? newest->step() : 0;
    CHECK(step >= (committed_.empty() ? 0 : committed_.rbegin()->first));
    REQUIRE(Save(**last, job, step + 1, 0.5f) == absl::OkStatus());
    CHECK(Checkpoints(job).at(step + 1) == 0.5f);
  }

  RandomStream random_;
  std::unique_ptr<FileSystem> files_;
  Job job_;
  std::unique_ptr<JobStore> store_;
  uint64_t step_ = 0;
  float values_ = 0;
  std::map<uint64_t, float> committed_;
  std::map<uint64_t, std::set<float>> attempted_;
};

TEST_CASE("Schedules of faults: no checkpoint is lost, loads in part, or is committed twice") {
  const Share share = ThisShare();
  const uint64_t seeds = 60 / share.count;
  uint64_t committed = 0;
  for (uint64_t seed = share.index * seeds; seed < (share.index + 1) * seeds; ++seed) {
    INFO("seed " << seed);
    Schedule schedule(seed);
    schedule.Run();
    committed += schedule.committed();
  }
  CHECK(committed >= seeds / 2);
}

}  // namespace
}  // namespace weir
