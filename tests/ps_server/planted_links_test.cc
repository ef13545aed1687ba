// Symbolic links that somebody has put into a job's folder: the job never writes through them.
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_writer.h"
#include "common/model/wire_model.h"
#include "common/system/file_system.h"
#include "ps_server/coordinator/checkpoints/job_store.h"
#include "ps_server/push_log/push_log.h"
#include "ps_server/shard/restore/restore.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

// The moment when a link is planted.
enum class Stage { kFirst, kBegun, kWritten };

struct Link {
  Stage stage;
  std::string name;
  // The link leads to a folder, else to a file.
  bool folder = false;
};

// Writes everything that a job of one server writes in its folder, and collects the errors.
class Job {
 public:
  Job(FileSystem& files, std::string folder) : files_(files), folder_(std::move(folder)) {}

  std::vector<absl::Status> Run(const std::function<void(Stage)>& stage) {
    stage(Stage::kFirst);
    JobStoreOnDisk::Options options;
    options.file_system = &files_;
    options.directory = folder_;
    options.holder.set_nonce(77);
    options.run = [](const std::function<void()>& work) { work(); };
    auto store = JobStoreOnDisk::Open(std::move(options));
    Note(store.status());
    if (store.ok()) Save(**store, stage);
    PushLog::Options log;
    log.files = &files_;
    log.folder = LogFolder(folder_, 0, 1);
    log.executor = [](const std::function<void()>& work) { work(); };
    Note(files_.MakeFolder(ParentFolder(log.folder)));
    Note(PushLog::Begin(log).status());
    return errors_;
  }

 private:
  void Note(absl::Status status) {
    if (!status.ok()) errors_.push_back(std::move(status));
  }

  void Save(JobStore& store, const std::function<void(Stage)>& stage) {
    store.Begin(1, [this](absl::Status status) { Note(std::move(status)); });
    stage(Stage::kBegun);
    const ModelSpec model{{{"w", {40}, TensorKind::kParameter, Initializer::Zeros()}}};
    const std::vector<float> weights(40, 1.5f);
    ShardSnapshot snapshot;
    snapshot.model = model;
    snapshot.state.set_num_shards(1);
    snapshot.state.mutable_version()->set_incarnation(7);
    snapshot.state.mutable_version()->set_count(1);
    snapshot.weights = weights;
    const auto file = WriteShardFile(files_, folder_, 1, snapshot);
    Note(file.status());
    stage(Stage::kWritten);
    if (!file.ok()) return;
    v1::CheckpointManifest manifest;
    manifest.set_step(1);
    *manifest.mutable_model() = ToProto(model);
    manifest.mutable_job()->set_committed_steps(1);
    *manifest.add_files() = *file;
    store.Commit(manifest, [this](absl::Status status) { Note(std::move(status)); });
  }

  FileSystem& files_;
  const std::string folder_;
  std::vector<absl::Status> errors_;
};

TEST_CASE("A link in the folder of checkpoints leads nothing outside, whatever name it bears") {
  const char* const root = std::getenv("TEST_TMPDIR");
  const fs::path top = fs::path(root == nullptr ? "/tmp" : root) / "planted_links";
  const std::string step = "step-00000001/", shard = "shard-00000-of-00001";
  const std::vector<Link> links = {
      {Stage::kFirst, "coordinator.json"},
      {Stage::kFirst, "coordinator", true},
      {Stage::kFirst, "coordinator/00000001.json"},
      {Stage::kFirst, "coordinator/.00000001.json.tmp-77"},
      {Stage::kFirst, "step-00000001", true},
      {Stage::kFirst, step + "manifest.json"},
      {Stage::kFirst, step + "." + shard + ".safetensors.tmp-7"},
      {Stage::kBegun, step + "." + shard + ".safetensors.tmp-7"},
      {Stage::kBegun, step + shard + ".safetensors"},
      {Stage::kWritten, step + ".manifest.json.tmp-1"},
      {Stage::kWritten, step + "manifest.json"},
      {Stage::kFirst, "log", true},
      {Stage::kFirst, "log/" + shard, true},
      {Stage::kFirst, "log/" + shard + "/00000001.log"},
  };
  for (const Link& link : links) {
    CAPTURE(link.name, static_cast<int>(link.stage));
    fs::remove_all(top);
    fs::create_directories(top / "runs");
    fs::create_directories(top / "victim_folder");
    FileSystem& plain = FileSystem::Posix();
    const std::string victim = top / "victim";
    REQUIRE(plain.WriteFile(victim, "as it was").ok());
    // The owner may have made the job's folder itself a link.
    fs::create_directory_symlink(top / "runs", top / "job");
    const auto files = FileSystem::Beneath(top / "job");
    bool planted = false;
    const std::vector<absl::Status> errors = Job(*files, top / "job").Run([&](Stage stage) {
      if (stage != link.stage) return;
      const fs::path path = top / "runs" / link.name;
      fs::create_directories(path.parent_path());
      fs::remove(path);
      fs::create_symlink(link.folder ? top / "victim_folder" : fs::path(victim), path);
      planted = true;
    });
    CHECK(planted);
    CHECK(plain.ReadFile(victim, 100).value_or("") == "as it was");
    CHECK(plain.List(top / "victim_folder")->empty());
    // The link is replaced, or the error names it.
    for (const absl::Status& error : errors) {
      CAPTURE(error.ToString());
      CHECK((absl::StrContains(error.message(), "symbolic link") || absl::IsAlreadyExists(error)));
      CHECK(absl::StrContains(error.message(), link.name));
    }
    CHECK(errors.size() <= 2);
  }
}

TEST_CASE("A hard link to a file outside is replaced, too") {
  const char* const root = std::getenv("TEST_TMPDIR");
  const fs::path top = fs::path(root == nullptr ? "/tmp" : root) / "planted_hard_links";
  fs::remove_all(top);
  fs::create_directories(top / "runs");
  FileSystem& plain = FileSystem::Posix();
  REQUIRE(plain.WriteFile(top / "victim", "as it was").ok());
  fs::create_hard_link(top / "victim", top / "runs/file");
  const auto beneath = FileSystem::Beneath(top / "runs");
  for (FileSystem* files : {&plain, beneath.get()}) {
    REQUIRE(files->WriteFile(top / "runs/file", "new").ok());
    CHECK(*files->ReadFile(top / "runs/file", 10) == "new");
    CHECK(*plain.ReadFile(top / "victim", 10) == "as it was");
  }
}

}  // namespace
}  // namespace weir
