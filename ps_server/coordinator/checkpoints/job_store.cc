#include "ps_server/coordinator/checkpoints/job_store.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/checkpoint_writer.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"
#include "common/threads/thread.h"

namespace weir {
namespace {

// How many numbers are reserved at once, beyond those that are asked for, and how many are kept in reserve.
constexpr uint64_t kBlock = 1000, kReserveAhead = 300;
// The pause after a failure to reserve needed numbers, and after a failure to reserve numbers in advance.
constexpr absl::Duration kAskAgain = absl::Seconds(1), kAskAheadAgain = absl::Seconds(10);
// This many names are tried, since a reservation is sent only once.
constexpr int kReservations = 4;

absl::Status NothingWhole(absl::string_view seen) {
  return absl::DataLossError(absl::StrCat(seen, ". Put a whole checkpoint back from a copy (and remove its ",
                                          kDamagedName,
                                          ", if it has one), or start the job anew in another folder"));
}

class DiskStore final : public JobStore {
 public:
  explicit DiskStore(JobStoreOnDisk::Options options)
      : options_(std::move(options)), fs_(*options_.file_system) {}

  absl::Status Open() {
    if (!options_.run) {
      WEIR_ASSIGN_OR_RETURN(thread_, WorkThread::Start("save the job"));
    }
    WEIR_RETURN_IF_ERROR(holds_folders() ? MakeFolders(options_.directory) : CheckReservations());
    WEIR_ASSIGN_OR_RETURN(
        claim_, FolderClaim::Take({&fs_, options_.directory, options_.holder, options_.certainly_runs},
                                  [this](const v1::CoordinatorMemory& before) {
                                    v1::CoordinatorMemory memory = before;
                                    *memory.mutable_job() = JobAfter(before.job());
                                    memory.set_coordinator_incarnation(before.coordinator_incarnation() + 1);
                                    memory.set_epoch_limit(before.epoch_limit() + kBlock);
                                    memory.set_incarnation_limit(before.incarnation_limit() + kBlock);
                                    return memory;
                                  }));
    const v1::CoordinatorMemory& before = claim_->before();
    opened_.coordinator_incarnation = before.coordinator_incarnation() + 1;
    opened_.job = JobAfter(before.job());
    opened_.used = {before.epoch_limit(), before.incarnation_limit()};
    if (before.begun_plus_one() > 0) {
      WEIR_RETURN_IF_ERROR(RemoveBegun(before.begun_plus_one() - 1));
      WEIR_RETURN_IF_ERROR(SetBegun(std::nullopt));
    }
    const JobStore::Numbers used = opened_.used;
    const uint64_t incarnation = opened_.coordinator_incarnation, job = opened_.job.id();
    WEIR_RETURN_IF_ERROR(FindNewest());
    opened_.reserved = {opened_.used.epoch + kBlock, opened_.used.incarnation + kBlock};
    if (used.epoch == opened_.used.epoch && used.incarnation == opened_.used.incarnation &&
        incarnation == opened_.coordinator_incarnation && job == opened_.job.id()) {
      return absl::OkStatus();
    }
    return SetAside(opened_.reserved);
  }

  const Opened& opened() const override { return opened_; }

  void Reserve(const Numbers& up_to, Done done) override {
    Run([this, up_to, done = std::move(done)] { done(SetAside(up_to)); });
  }

  std::string FolderOf(uint64_t step) const override { return CheckpointFolder(options_.directory, step); }

  void Begin(uint64_t step, Done done) override {
    Run([this, step, done = std::move(done)] { done(MakeRoom(step)); });
  }

  void Commit(v1::CheckpointManifest manifest, Done done) override {
    manifest.set_incarnation(opened_.coordinator_incarnation);
    Run([this, manifest = std::move(manifest), done = std::move(done)] {
      absl::Status status =
          CommitCheckpoint(fs_, options_.directory, manifest, [this] { return StillOurs(); });
      // From now on the checkpoint counts, also for later coordinators.
      if (status.ok()) status = SetBegun(std::nullopt);
      const bool committed = status.ok();
      done(std::move(status));
      if (!committed) return;
      Mark();
      std::optional<uint64_t> best;
      if (manifest.job().has_best()) best = manifest.job().best().checkpoint();
      if (const absl::Status removed =
              RemoveOldCheckpoints(fs_, options_.directory, manifest.step(), options_.keep, best);
          !removed.ok()) {
        LogWarning("cannot remove old checkpoints: ", std::string(removed.message()));
      }
    });
  }

  void PassOver(uint64_t step, const std::string& why, Found done) override {
    Run([this, step, why, done = std::move(done)] { done(WholeBefore(step, why)); });
  }

  void Discard(uint64_t step) override {
    Run([this, step] {
      const absl::StatusOr<std::string> folder = FindFolder(fs_, options_.directory, step);
      if (absl::IsNotFound(folder.status())) return;
      const absl::Status discarded =
          folder.ok() ? DiscardCheckpoint(fs_, *folder, [this] { return SeemsOurs(); }) : folder.status();
      // This is not a warning. The cause has probably prevented the writing, too, which was logged, and the
      // removal is tried again later.
      if (!discarded.ok()) {
        LogInfo("what was written of checkpoint ", step, " is still there: ", discarded.message());
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

  absl::Status SetAside(const Numbers& up_to) {
    return claim_->Write([&](v1::CoordinatorMemory& memory) {
      memory.set_coordinator_incarnation(opened_.coordinator_incarnation);
      *memory.mutable_job() = opened_.job;
      memory.set_epoch_limit(std::max(memory.epoch_limit(), up_to.epoch));
      memory.set_incarnation_limit(std::max(memory.incarnation_limit(), up_to.incarnation));
    });
  }

  // The job that has the folder now, if the last record names job `before`. If there is no checkpoint, a job
  // of a different name begins anew.
  v1::JobIdentity JobAfter(const v1::JobIdentity& before) const {
    return before.id() != 0 && before.name() == options_.job.name() ? before : options_.job;
  }

  bool holds_folders() const { return fs_.HoldsFolders(options_.directory); }

  // The store depends on the conditions of puts, which some object storage ignores.
  absl::Status CheckReservations() {
    for (int tries = 1;; ++tries) {
      const std::string name = absl::StrCat(".probe-", options_.holder.nonce(), "-", tries);
      const absl::Status honoured = CheckReservation(JoinPath(options_.directory, name));
      if (!absl::IsUnavailable(honoured) || tries == kReservations) return honoured;
    }
  }

  absl::Status CheckReservation(const std::string& path) {
    WEIR_RETURN_IF_ERROR(fs_.Reserve(path));
    const absl::Status again = fs_.Reserve(path);
    WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<StagedFile> file, fs_.Stage(path, path));
    WEIR_RETURN_IF_ERROR(file->Append("late"));
    WEIR_RETURN_IF_ERROR(fs_.Remove(path));
    const absl::Status late = file->Publish(absl::OkStatus(), FileSystem::Existing::kKeep);
    fs_.Remove(path).IgnoreError();
    for (const absl::Status& status : {again, late}) {
      if (absl::IsUnavailable(status)) return status;
    }
    if (absl::IsAlreadyExists(again) && absl::IsAborted(late)) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(options_.directory, ": this object storage ignores the conditions of puts (",
                     again.ok() ? "If-None-Match" : "If-Match",
                     "), without which two ps:0 could both save the job; use one that honours them"));
  }

  // Removes the checkpoint on which the previous owner was working.
  absl::Status RemoveBegun(uint64_t step) {
    if (holds_folders()) return RemoveCheckpoint(fs_, FolderOf(step), [this] { return StillOurs(); });
    return RemoveAttempts(fs_, options_.directory, step, claim_->number());
  }

  absl::Status MakeRoom(uint64_t step) {
    if (!holds_folders()) return MakeAttempt(step);
    const Confirm confirm = [this, step] { return SetBegun(step); };
    const absl::Status begun = BeginCheckpoint(fs_, options_.directory, step, confirm);
    if (!absl::IsAlreadyExists(begun)) return begun;
    // The folder has a damaged checkpoint that was passed over, or a checkpoint whose commit failed at the
    // very end. The job does not count on it, and has come to its step again.
    LogWarning("removes ", FolderOf(step), ", which the job does not count on: its step is saved again");
    WEIR_RETURN_IF_ERROR(RemoveCheckpoint(fs_, FolderOf(step), confirm));
    return BeginCheckpoint(fs_, options_.directory, step, confirm);
  }

  absl::Status MakeAttempt(uint64_t step) {
    // The manifest of a failed checkpoint may still be on its way. Once the reservation is gone, the manifest
    // is refused, and only then may the record name a new checkpoint.
    if (begun_.has_value()) WEIR_RETURN_IF_ERROR(RemoveBegun(*begun_));
    for (int tries = 1;; ++tries) {
      WEIR_RETURN_IF_ERROR(SetBegun(step));
      const absl::Status begun = BeginAttempt(fs_, options_.directory, step, claim_->number());
      // Each record has a new number, so each attempt has a new name.
      if (!absl::IsUnavailable(begun) || tries == kReservations) return begun;
    }
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
      // If there are damaged checkpoints, a user would not expect the job to begin anew.
      WEIR_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries,
                            FindCheckpoints(fs_, options_.directory));
      const bool damaged = std::any_of(entries.begin(), entries.end(),
                                       [](const CheckpointEntry& entry) { return entry.has_manifest; });
      return damaged ? NothingWhole(found.status().message()) : absl::OkStatus();
    }
    WEIR_RETURN_IF_ERROR(found.status());
    for (const std::string& refused : found->refused) {
      LogWarning("passed over a damaged checkpoint: ", refused, "; the job goes on from ", found->folder,
                 " instead");
    }
    // Copied checkpoints come without records, so the numbers in them count.
    const v1::CoordinatorState& job = found->manifest.job();
    if (job.identity().id() != 0) opened_.job = job.identity();
    opened_.used.epoch = std::max(opened_.used.epoch, job.epoch());
    opened_.used.incarnation = std::max(opened_.used.incarnation, job.last_incarnation());
    opened_.coordinator_incarnation =
        std::max(opened_.coordinator_incarnation, found->manifest.incarnation() + 1);
    opened_.newest = std::move(found->manifest);
    return absl::OkStatus();
  }

  // PassOver().
  absl::StatusOr<v1::CheckpointManifest> WholeBefore(uint64_t step, const std::string& why) {
    // Look() is enough, since a damaged checkpoint is no loss. Write() would fail on a full disk.
    WEIR_RETURN_IF_ERROR(claim_->Look());
    WEIR_ASSIGN_OR_RETURN(const std::string folder, CompleteFolder(fs_, options_.directory, step));
    const absl::Status here = ReadWhole(fs_, folder);
    if (here.ok()) {
      return absl::FailedPreconditionError(absl::StrCat("ps:0 has read ", folder, ", and it is whole"));
    }
    if (!IsDamage(here)) return here;
    OnDamaged(folder, why);
    absl::StatusOr<FoundCheckpoint> before = FindWholeBefore(
        fs_, options_.directory, step, [this](const std::string& other, const std::string& what) {
          LogWarning("passed over, too: ", what);
          OnDamaged(other, what);
        });
    if (absl::IsDataLoss(before.status())) return NothingWhole(before.status().message());
    WEIR_RETURN_IF_ERROR(before.status());
    return std::move(before->manifest);
  }

  // Marks the checkpoint at once, so that even if this start fails, the next one need not read it again.
  void OnDamaged(const std::string& folder, const std::string& why) {
    damaged_[folder] = why;
    Mark();
  }

  // Marks the checkpoints that were found damaged; if the disk is full now, after a later checkpoint.
  void Mark() {
    for (auto it = damaged_.begin(); it != damaged_.end();) {
      const absl::Status marked = MarkDamaged(fs_, it->first, it->second);
      if (!marked.ok()) LogInfo("cannot mark ", it->first, " as damaged yet: ", marked.message());
      it = marked.ok() ? damaged_.erase(it) : std::next(it);
    }
  }

  // Records the step of the checkpoint whose folder does not count yet; nullopt: there is none. Aborted:
  // another coordinator has the job now.
  absl::Status SetBegun(std::optional<uint64_t> step) {
    WEIR_RETURN_IF_ERROR(claim_->Write(
        [&](v1::CoordinatorMemory& memory) { memory.set_begun_plus_one(step.has_value() ? *step + 1 : 0); }));
    begun_ = step;
    return absl::OkStatus();
  }
  // A process that was stopped for long may have been replaced meanwhile.
  absl::Status StillOurs() {
    return claim_->Write([](v1::CoordinatorMemory&) {});
  }

  // As StillOurs(), for a disk that may be full. If an action relies on this answer, it must not be able to
  // harm a complete checkpoint.
  absl::Status SeemsOurs() {
    const absl::Status ours = StillOurs();
    return absl::IsResourceExhausted(ours) ? claim_->Look() : ours;
  }

  const JobStoreOnDisk::Options options_;
  FileSystem& fs_;
  std::unique_ptr<FolderClaim> claim_;
  Opened opened_;
  // The step of the checkpoint that the newest record names as begun.
  std::optional<uint64_t> begun_;
  // The damage that is to be marked, by folder.
  std::map<std::string, std::string> damaged_;
  // Last, so that the thread ends first.
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

bool JobNumbers::Has(uint64_t count) const {
  return !options_.reserve ||
         (last_.epoch + count <= reserved_.epoch && last_.incarnation + count <= reserved_.incarnation);
}

bool JobNumbers::Need(uint64_t count) {
  if (Has(count)) return true;
  needed_ = true;
  Ask(count);
  return false;
}

void JobNumbers::Tick() {
  const absl::Time now = job_.now();
  if (now >= next_ask_ahead_ && !Has(kReserveAhead)) Ask(kReserveAhead);
  if (trouble_.has_value() && now >= trouble_->next) Ask(trouble_->count);
}

void JobNumbers::Ask(uint64_t count) {
  if (std::exchange(asking_, true)) return;
  const JobStore::Numbers wanted = {std::max(reserved_.epoch, last_.epoch + count + kBlock),
                                    std::max(reserved_.incarnation, last_.incarnation + count + kBlock)};
  options_.reserve(wanted, [this, wanted, count](const absl::Status& status) {
    asking_ = false;
    if (status.ok()) reserved_ = wanted;
    OnAnswer(status, count, std::exchange(needed_, false));
  });
}

void JobNumbers::OnAnswer(const absl::Status& status, uint64_t count, bool needed) {
  if (job_.over()) return;
  if (absl::IsAborted(status)) return job_.replaced(std::string(status.message()));
  if (!status.ok()) {
    const std::string why = absl::StrCat("cannot reserve membership epochs, which must never be used again: ",
                                         std::string(status.message()));
    if (needed && MayPass(status)) return AskAgain(count, why);
    if (needed) return job_.fail(LostPeer(why));
    next_ask_ahead_ = job_.now() + kAskAheadAgain;
    return LogWarning(why);
  }
  trouble_.reset();
  options_.reserved(needed);
}

void JobNumbers::AskAgain(uint64_t count, const std::string& why) {
  const absl::Time now = job_.now();
  const double limit = job_.config.checkpoint().save_wait_seconds();
  if (!trouble_.has_value()) {
    trouble_ = Trouble{now, now, count};
    LogWarning(why, "; it is tried again for ", limit,
               " s (checkpoint.save_wait_seconds), make room meanwhile");
  }
  if (now - trouble_->since >= absl::Seconds(limit)) {
    return job_.fail(StorageFailure(
        absl::StrCat(why, "; there was no room within checkpoint.save_wait_seconds = ", limit)));
  }
  trouble_->next = now + kAskAgain;
  trouble_->count = count;
  needed_ |= !Has(count);  // an action still waits for them
}

}  // namespace weir
