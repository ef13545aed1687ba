#include "ps_server/coordinator/job_store_on_disk.h"

#include <algorithm>
#include <deque>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_writer.h"
#include "common/config/json_document.h"
#include "common/config/proto_json.h"
#include "common/crc32c.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

constexpr char kMemoryName[] = "coordinator.json";
constexpr uint64_t kMaxMemory = 64 << 10;
// Numbers that are reserved at once.
constexpr uint64_t kBlock = 1000;

// Runs what it is given in order, on a thread of its own.
class WorkThread {
 public:
  WorkThread() : thread_([this] { Loop(); }) {}
  ~WorkThread() {
    Post(nullptr);
    thread_.join();
  }
  void Post(std::function<void()> work) {
    MutexLock lock(mutex_);
    queue_.push_back(std::move(work));
    changed_.NotifyAll();
  }

 private:
  void Loop() {
    while (true) {
      std::function<void()> work;
      {
        MutexLock lock(mutex_);
        while (queue_.empty()) changed_.Wait(mutex_);
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      if (work == nullptr) return;
      work();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  // An empty function ends the thread.
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

std::string Encode(const v1::CoordinatorMemory& memory) {
  const auto no_defaults = [](const google::protobuf::Message&, const google::protobuf::FieldDescriptor&) {
    return false;
  };
  const std::string text = absl::StrCat("{\n\"memory\": ", WriteProto(memory, no_defaults));
  return absl::StrCat(text, absl::StrFormat(",\n\"crc32c\": \"%08x\"\n}\n", Crc32c(text)));
}

// nullopt: there is none yet.
absl::StatusOr<std::optional<v1::CoordinatorMemory>> ReadMemory(FileSystem& fs, const std::string& dir) {
  const std::string path = JoinPath(dir, kMemoryName);
  absl::StatusOr<std::string> text = fs.ReadFile(path, kMaxMemory);
  if (absl::IsNotFound(text.status())) return std::nullopt;
  WEIR_RETURN_IF_ERROR(text.status());
  const absl::StatusOr<JsonValue> json = ParseJson(*text, path);
  v1::CoordinatorMemory memory;
  ConfigProblems problems;
  if (json.ok()) {
    const JsonMember* const member = json->Find("memory");
    if (member != nullptr) ReadProto(member->value, "", &memory, &problems);
  }
  // It is what was written if it is written so again.
  if (!json.ok() || !problems.ToStatus().ok() || Encode(memory) != *text) {
    return absl::DataLossError(
        absl::StrCat(path,
                     " is damaged. It holds the epochs that must not be used again; remove it only when "
                     "no server and no worker of the job is running any more"));
  }
  return memory;
}

absl::Status WriteMemory(FileSystem& fs, const std::string& dir, const v1::CoordinatorMemory& memory) {
  const std::string temporary = JoinPath(dir, TemporaryName(kMemoryName, memory.coordinator_incarnation()));
  return fs.Publish(fs.WriteFile(temporary, Encode(memory)), temporary, JoinPath(dir, kMemoryName),
                    FileSystem::Existing::kReplace);
}

class DiskStore final : public JobStore {
 public:
  explicit DiskStore(JobStoreOnDisk::Options options)
      : options_(std::move(options)), fs_(*options_.file_system) {
    if (!options_.run) thread_ = std::make_unique<WorkThread>();
  }

  absl::Status Open() {
    WEIR_RETURN_IF_ERROR(MakeFolders(options_.directory));
    WEIR_ASSIGN_OR_RETURN(const std::optional<v1::CoordinatorMemory> memory,
                          ReadMemory(fs_, options_.directory));
    if (memory.has_value()) {
      opened_.coordinator_incarnation = memory->coordinator_incarnation() + 1;
      opened_.used = {memory->epoch_limit(), memory->incarnation_limit()};
    }
    WEIR_RETURN_IF_ERROR(FindNewest());
    opened_.reserved = {opened_.used.epoch + kBlock, opened_.used.incarnation + kBlock};
    return Write(opened_.reserved);
  }

  const Opened& opened() const override { return opened_; }

  absl::Status Reserve(const Numbers& up_to) override {
    WEIR_RETURN_IF_ERROR(StillOurs());
    return Write(up_to);
  }

  std::string FolderOf(uint64_t step) const override { return CheckpointFolder(options_.directory, step); }

  void Begin(uint64_t step, Done done) override {
    Run([this, step, done = std::move(done)] { done(MakeRoom(step)); });
  }

  void Commit(v1::CheckpointManifest manifest, Done done) override {
    manifest.set_incarnation(opened_.coordinator_incarnation);
    Run([this, manifest = std::move(manifest), done = std::move(done)] {
      absl::Status status = StillOurs();
      if (status.ok()) status = CommitCheckpoint(fs_, options_.directory, manifest);
      const bool committed = status.ok();
      done(std::move(status));
      if (!committed) return;
      if (const absl::Status removed = RemoveOldCheckpoints(fs_, options_.directory, options_.keep);
          !removed.ok()) {
        LogWarning("cannot remove old checkpoints: ", std::string(removed.message()));
      }
    });
  }

 private:
  void Run(std::function<void()> work) {
    if (options_.run) {
      options_.run(std::move(work));
    } else {
      thread_->Post(std::move(work));
    }
  }

  absl::Status MakeRoom(uint64_t step) {
    WEIR_RETURN_IF_ERROR(StillOurs());
    const absl::Status begun = BeginCheckpoint(fs_, options_.directory, step);
    if (!absl::IsAlreadyExists(begun)) return begun;
    // A damaged one that was passed over, or one whose commit failed at its last breath: the job does not
    // count on it, and comes by again.
    WEIR_RETURN_IF_ERROR(RemoveCheckpoint(fs_, FolderOf(step)));
    return BeginCheckpoint(fs_, options_.directory, step);
  }

  absl::Status MakeFolders(const std::string& path) {
    absl::Status made = fs_.MakeFolder(path);
    const std::string parent = ParentFolder(path);
    if (absl::IsNotFound(made) && parent != path) {
      WEIR_RETURN_IF_ERROR(MakeFolders(parent));
      made = fs_.MakeFolder(path);
    }
    WEIR_RETURN_IF_ERROR(made);
    return fs_.SyncFolder(parent);
  }

  absl::Status FindNewest() {
    absl::StatusOr<FoundCheckpoint> found = LatestComplete(fs_, options_.directory);
    if (absl::IsNotFound(found.status())) {
      // To begin anew beside them would be a surprise.
      WEIR_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries,
                            FindCheckpoints(fs_, options_.directory));
      const bool damaged = std::any_of(entries.begin(), entries.end(),
                                       [](const CheckpointEntry& entry) { return entry.has_manifest; });
      return damaged ? absl::DataLossError(found.status().message()) : absl::OkStatus();
    }
    WEIR_RETURN_IF_ERROR(found.status());
    for (const std::string& refused : found->refused)
      LogWarning("passed over a damaged checkpoint: ", refused);
    // Checkpoints that were copied come without coordinator.json.
    const v1::CoordinatorState& job = found->manifest.job();
    opened_.used.epoch = std::max(opened_.used.epoch, job.epoch());
    opened_.used.incarnation = std::max(opened_.used.incarnation, job.last_incarnation());
    opened_.coordinator_incarnation =
        std::max(opened_.coordinator_incarnation, found->manifest.incarnation() + 1);
    opened_.newest = std::move(found->manifest);
    return absl::OkStatus();
  }

  absl::Status Write(const Numbers& limits) {
    v1::CoordinatorMemory memory;
    memory.set_coordinator_incarnation(opened_.coordinator_incarnation);
    memory.set_epoch_limit(limits.epoch);
    memory.set_incarnation_limit(limits.incarnation);
    return WriteMemory(fs_, options_.directory, memory);
  }

  // Whoever was stopped for long may have been replaced meanwhile.
  absl::Status StillOurs() {
    WEIR_ASSIGN_OR_RETURN(const std::optional<v1::CoordinatorMemory> memory,
                          ReadMemory(fs_, options_.directory));
    if (memory.has_value() && memory->coordinator_incarnation() == opened_.coordinator_incarnation) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(
        absl::StrCat(options_.directory, " belongs to another coordinator now, of incarnation ",
                     memory.has_value() ? memory->coordinator_incarnation() : 0,
                     "; this one is of incarnation ", opened_.coordinator_incarnation));
  }

  const JobStoreOnDisk::Options options_;
  FileSystem& fs_;
  Opened opened_;
  // Last, so that it ends first.
  std::unique_ptr<WorkThread> thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<JobStore>> JobStoreOnDisk::Open(Options options) {
  auto store = std::make_unique<DiskStore>(std::move(options));
  if (absl::Status status = store->Open(); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat("checkpoint.directory: ", status.message()));
  }
  return std::unique_ptr<JobStore>(std::move(store));
}

}  // namespace weir
