// The coordinator's memory on a disk that fills, fails and forgets what was not synced.
#include "ps_server/coordinator/job_store_on_disk.h"

#include <future>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/checkpoint/checkpoint_writer.h"
#include "common/wire_model.h"
#include "tests/common/faulty_file_system.h"

namespace weir {
namespace {

using Catch::Contains;
using Kind = FaultyFileSystem::Kind;

const ModelSpec& Model() {
  static const ModelSpec model{{{"w", {40}, TensorKind::kParameter, Initializer::Zeros()}}};
  return model;
}

// What blocks is done at once.
absl::StatusOr<std::unique_ptr<JobStore>> Open(FileSystem& fs, int keep = 3) {
  JobStoreOnDisk::Options options;
  options.file_system = &fs;
  options.directory = "/runs/7";
  options.keep = keep;
  options.run = [](const std::function<void()>& work) { work(); };
  return JobStoreOnDisk::Open(std::move(options));
}

absl::Status Save(JobStore& store, FileSystem& fs, uint64_t step) {
  absl::Status result = absl::UnknownError("no answer");
  store.Begin(step, [&](absl::Status status) { result = std::move(status); });
  if (!result.ok()) return result;
  v1::CheckpointManifest manifest;
  manifest.set_step(step);
  *manifest.mutable_model() = ToProto(Model());
  manifest.mutable_job()->set_committed_steps(step);
  manifest.mutable_job()->set_epoch(5);
  const std::vector<float> weights(40, 1.5f);
  ShardSnapshot snapshot;
  snapshot.model = Model();
  snapshot.state.set_num_shards(1);
  snapshot.state.mutable_version()->set_incarnation(7);
  snapshot.state.mutable_version()->set_count(step);
  snapshot.weights = weights;
  auto file = WriteShardFile(fs, "/runs/7", step, snapshot);
  if (!file.ok()) return file.status();
  *manifest.add_files() = *file;
  store.Commit(manifest, [&](absl::Status status) { result = std::move(status); });
  return result;
}

TEST_CASE("Each life of the coordinator is a later one, and begins where no number was used") {
  FaultyFileSystem fs(1);
  JobStore::Numbers used;
  for (uint64_t life = 1; life <= 4; ++life) {
    auto store = Open(fs);
    REQUIRE(store.ok());
    const JobStore::Opened opened = (*store)->opened();
    CHECK(opened.coordinator_incarnation == life);
    CHECK_FALSE(opened.newest.has_value());
    CHECK(opened.used.epoch >= used.epoch);
    CHECK(opened.used.incarnation >= used.incarnation);
    CHECK(opened.reserved.epoch >= opened.used.epoch + 1000);
    used = opened.reserved;
    if (life == 2) {
      used = {used.epoch + 5000, used.incarnation + 10};
      CHECK((*store)->Reserve(used).ok());
    }
    if (life == 3) fs.Crash();
  }
}

TEST_CASE("Whatever the disk does, and whenever it loses its power, no number comes twice") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    FaultyFileSystem fs(seed);
    JobStore::Numbers used;
    uint64_t incarnation = 0;
    for (int life = 0; life < 5; ++life) {
      fs.SetFault([&](const FaultyFileSystem::Operation& operation) {
        return (operation.number * 2654435761u + seed) % 11 == 0 ? absl::DataLossError("I/O error")
                                                                 : absl::OkStatus();
      });
      if (auto store = Open(fs); store.ok()) {
        const JobStore::Opened opened = (*store)->opened();
        REQUIRE(opened.coordinator_incarnation > incarnation);
        REQUIRE(opened.used.epoch >= used.epoch);
        REQUIRE(opened.used.incarnation >= used.incarnation);
        incarnation = opened.coordinator_incarnation;
        used = opened.reserved;
        const JobStore::Numbers more = {used.epoch + 700, used.incarnation + 900};
        if ((*store)->Reserve(more).ok()) used = more;
      }
      fs.Crash();
    }
    fs.SetFault(nullptr);
    CHECK(Open(fs).ok());
  }
}

TEST_CASE("A coordinator that has been replaced can neither reserve, begin nor commit") {
  FaultyFileSystem fs(1);
  auto old = Open(fs);
  auto now = Open(fs);
  CHECK((*old)->Reserve({9000, 9000}).code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string((*old)->Reserve({9000, 9000}).message()), Contains("incarnation 2"));
  CHECK(Save(**old, fs, 1).code() == absl::StatusCode::kFailedPrecondition);
  CHECK(Save(**now, fs, 1).ok());
  CHECK(Open(fs).value()->opened().used.epoch < 9000);
}

TEST_CASE("The newest complete checkpoint is found, the old ones go") {
  FaultyFileSystem fs(1);
  {
    auto store = Open(fs, 2);
    for (uint64_t step : {3, 5, 8}) REQUIRE(Save(**store, fs, step) == absl::OkStatus());
    absl::Status begun;
    (*store)->Begin(9, [&](absl::Status status) { begun = std::move(status); });
    CHECK(begun.ok());
    CHECK((*store)->FolderOf(8) == "/runs/7/step-00000008");
  }
  CHECK(fs.List("/runs/7").value() ==
        std::vector<std::string>{"coordinator.json", "step-00000005", "step-00000008", "step-00000009"});
  auto store = Open(fs, 2);
  REQUIRE((*store)->opened().newest.has_value());
  CHECK((*store)->opened().newest->step() == 8);
  CHECK((*store)->opened().newest->incarnation() == 1);
  // A step whose checkpoint the job does not count on can be saved anew.
  fs.SetContents("/runs/7/step-00000008/manifest.json", "{}");
  auto again = Open(fs, 2);
  CHECK((*again)->opened().newest->step() == 5);
  CHECK(Save(**again, fs, 8).ok());
  CHECK(Open(fs)->get()->opened().newest->step() == 8);
}

TEST_CASE("Checkpoints that were copied without coordinator.json say which epochs were used") {
  FaultyFileSystem fs(1);
  CHECK(Save(**Open(fs), fs, 3).ok());
  CHECK(fs.Remove("/runs/7/coordinator.json").ok());
  auto store = Open(fs);
  CHECK((*store)->opened().coordinator_incarnation == 2);
  CHECK((*store)->opened().used.epoch == 5);
}

TEST_CASE("Damage is refused, never read as something else") {
  FaultyFileSystem fs(1);
  CHECK(Save(**Open(fs), fs, 3).ok());
  const std::string path = "/runs/7/coordinator.json";
  const std::string good = fs.Contents(path);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] ^= 1;
    fs.SetContents(path, bad);
    const auto store = Open(fs);
    REQUIRE(store.status().code() == absl::StatusCode::kDataLoss);
    CHECK_THAT(std::string(store.status().message()), Contains(path) && Contains("damaged"));
    fs.SetContents(path, good.substr(0, i));
    REQUIRE(Open(fs).status().code() == absl::StatusCode::kDataLoss);
  }
  fs.SetContents(path, good);
  // All checkpoints are damaged: the job does not begin anew in silence.
  fs.SetContents("/runs/7/step-00000003/manifest.json", "{}");
  CHECK(Open(fs).status().code() == absl::StatusCode::kDataLoss);
}

TEST_CASE("A full disk leaves the last checkpoint, and the store goes on when there is room") {
  FaultyFileSystem fs(1);
  auto store = Open(fs);
  CHECK(Save(**store, fs, 3).ok());
  fs.SetCapacity(fs.bytes_used() + 50);
  CHECK(Save(**store, fs, 4).code() == absl::StatusCode::kResourceExhausted);
  CHECK((*store)->Reserve({50000, 50000}).code() == absl::StatusCode::kResourceExhausted);
  fs.SetCapacity(1 << 20);
  CHECK((*store)->Reserve({50000, 50000}).ok());
  CHECK(Save(**store, fs, 4).ok());
}

TEST_CASE("By itself a store works on a thread of its own, and ends when all is done") {
  FaultyFileSystem fs(1);
  JobStoreOnDisk::Options options;
  options.file_system = &fs;
  options.directory = "/runs/7";
  auto store = JobStoreOnDisk::Open(options);
  REQUIRE(store.ok());
  std::promise<absl::Status> begun;
  (*store)->Begin(1, [&](absl::Status status) { begun.set_value(std::move(status)); });
  store->reset();
  auto result = begun.get_future();
  REQUIRE(result.wait_for(std::chrono::seconds(0)) == std::future_status::ready);
  CHECK(result.get().ok());
}

TEST_CASE("A directory that cannot be made is named") {
  FaultyFileSystem fs(1);
  fs.SetFault([](const FaultyFileSystem::Operation& operation) {
    return operation.kind == Kind::kMakeFolder
               ? absl::PermissionDeniedError(absl::StrCat(operation.path, ": no"))
               : absl::OkStatus();
  });
  const auto store = Open(fs);
  CHECK(store.status().code() == absl::StatusCode::kPermissionDenied);
  CHECK_THAT(std::string(store.status().message()), Contains("checkpoint.directory") && Contains("/runs/7"));
}

}  // namespace
}  // namespace weir
