// Bugs of what outlives a server: files, and the coordinator's store.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "tests/common/forwarding_file_system.h"
#include "tests/simulation/planted_bugs.h"

namespace weir {
namespace {

// A disk with one fault: a subclass overrides the faulty function.
class WrappedFiles : public ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;
  explicit WrappedFiles(std::unique_ptr<FileSystem> inner)
      : ForwardingFileSystem(inner.get()), owned_(std::move(inner)) {}

 protected:
  // A held folder has the same fault.
  template <typename Files>
  absl::StatusOr<std::unique_ptr<FileSystem>> HoldAs(const std::string& path) {
    auto held = inner_->OpenFolder(path);
    if (!held.ok()) return held;
    return std::unique_ptr<FileSystem>(std::make_unique<Files>(*std::move(held)));
  }

 private:
  const std::unique_ptr<FileSystem> owned_;
};

// A file whose Sync() does nothing and returns OK.
class Unsynced final : public WritableFile {
 public:
  explicit Unsynced(std::unique_ptr<WritableFile> inner) : inner_(std::move(inner)) {}
  absl::Status Append(absl::string_view data) override { return inner_->Append(data); }
  absl::Status Sync() override { return absl::OkStatus(); }
  absl::Status Close() override { return inner_->Close(); }

 private:
  const std::unique_ptr<WritableFile> inner_;
};

class NoSync : public WrappedFiles {
 public:
  using WrappedFiles::WrappedFiles;
  absl::StatusOr<std::unique_ptr<FileSystem>> OpenFolder(const std::string& path) override {
    return HoldAs<NoSync>(path);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path, Existing existing) override {
    auto file = inner_->Create(path, existing);
    if (!file.ok()) return file;
    return std::unique_ptr<WritableFile>(std::make_unique<Unsynced>(*std::move(file)));
  }
};

// Logs are written by their paths alone.
class NoLogSync final : public NoSync {
 public:
  using NoSync::NoSync;
  absl::StatusOr<std::unique_ptr<FileSystem>> OpenFolder(const std::string& path) override {
    return inner_->OpenFolder(path);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path, Existing existing) override {
    return absl::EndsWith(path, ".log") ? NoSync::Create(path, existing) : inner_->Create(path, existing);
  }
};

class NoFolderSync final : public WrappedFiles {
 public:
  using WrappedFiles::WrappedFiles;
  absl::StatusOr<std::unique_ptr<FileSystem>> OpenFolder(const std::string& path) override {
    return HoldAs<NoFolderSync>(path);
  }
  absl::Status SyncFolder(const std::string&) override { return absl::OkStatus(); }
};

template <typename Files>
void WrapFiles(Site* site) {
  site->seams.files = std::make_shared<Files>(&site->disk);
  site->files = site->seams.files.get();
}

// A restarted coordinator reads changed state.
class ForgetfulStore final : public JobStore {
 public:
  ForgetfulStore(std::unique_ptr<JobStore> inner, bool numbers, bool checkpoint)
      : inner_(std::move(inner)), opened_(inner_->opened()) {
    if (numbers) opened_.used = {};
    if (checkpoint) opened_.newest.reset();
  }
  const Opened& opened() const override { return opened_; }
  void Reserve(const Numbers& up_to, Done done) override { inner_->Reserve(up_to, std::move(done)); }
  std::string FolderOf(uint64_t step) const override { return inner_->FolderOf(step); }
  void Begin(uint64_t step, Done done) override { inner_->Begin(step, std::move(done)); }
  void Commit(v1::CheckpointManifest manifest, Done done) override {
    inner_->Commit(std::move(manifest), std::move(done));
  }
  void PassOver(uint64_t step, const std::string& why, Found done) override {
    inner_->PassOver(step, why, std::move(done));
  }
  void Discard(uint64_t step) override { inner_->Discard(step); }

 private:
  const std::unique_ptr<JobStore> inner_;
  Opened opened_;
};

std::function<void(Site*)> Forget(bool numbers, bool checkpoint) {
  return [numbers, checkpoint](Site* site) {
    site->seams.store = [numbers, checkpoint](std::unique_ptr<JobStore> inner) {
      return std::make_unique<ForgetfulStore>(std::move(inner), numbers, checkpoint);
    };
  };
}

// Reports a checkpoint as complete before it is.
class HastyStore final : public JobStore {
 public:
  explicit HastyStore(std::unique_ptr<JobStore> inner) : inner_(std::move(inner)) {}
  const Opened& opened() const override { return inner_->opened(); }
  void Reserve(const Numbers& up_to, Done done) override { inner_->Reserve(up_to, std::move(done)); }
  std::string FolderOf(uint64_t step) const override { return inner_->FolderOf(step); }
  void Begin(uint64_t step, Done done) override { inner_->Begin(step, std::move(done)); }
  void Commit(v1::CheckpointManifest manifest, Done done) override {
    done(absl::OkStatus());
    inner_->Commit(std::move(manifest), [](const absl::Status&) {});
  }
  void PassOver(uint64_t step, const std::string& why, Found done) override {
    inner_->PassOver(step, why, std::move(done));
  }
  void Discard(uint64_t step) override { inner_->Discard(step); }

 private:
  const std::unique_ptr<JobStore> inner_;
};

// A store that another coordinator has taken reports no error.
class NeverReplaced final : public JobStore {
 public:
  explicit NeverReplaced(std::unique_ptr<JobStore> inner) : inner_(std::move(inner)) {}
  const Opened& opened() const override { return inner_->opened(); }
  void Reserve(const Numbers& up_to, Done done) override {
    inner_->Reserve(up_to, [done = std::move(done)](absl::Status status) { done(Deny(std::move(status))); });
  }
  std::string FolderOf(uint64_t step) const override { return inner_->FolderOf(step); }
  void Begin(uint64_t step, Done done) override {
    inner_->Begin(step, [done = std::move(done)](absl::Status status) { done(Deny(std::move(status))); });
  }
  void Commit(v1::CheckpointManifest manifest, Done done) override {
    inner_->Commit(std::move(manifest),
                   [done = std::move(done)](absl::Status status) { done(Deny(std::move(status))); });
  }
  void PassOver(uint64_t step, const std::string& why, Found done) override {
    inner_->PassOver(step, why, std::move(done));
  }
  void Discard(uint64_t step) override { inner_->Discard(step); }

 private:
  static absl::Status Deny(absl::Status status) {
    return absl::IsAborted(status) ? absl::OkStatus() : status;
  }
  const std::unique_ptr<JobStore> inner_;
};

// The checkpoint before a damaged one is not taken: the damaged one is, again and again.
class DamagedAgain final : public JobStore {
 public:
  explicit DamagedAgain(std::unique_ptr<JobStore> inner)
      : inner_(std::move(inner)), newest_(inner_->opened().newest) {}
  const Opened& opened() const override { return inner_->opened(); }
  void Reserve(const Numbers& up_to, Done done) override { inner_->Reserve(up_to, std::move(done)); }
  std::string FolderOf(uint64_t step) const override { return inner_->FolderOf(step); }
  void Begin(uint64_t step, Done done) override { inner_->Begin(step, std::move(done)); }
  void Commit(v1::CheckpointManifest manifest, Done done) override {
    newest_ = manifest;
    inner_->Commit(std::move(manifest), std::move(done));
  }
  void PassOver(uint64_t step, const std::string& why, Found done) override { done(*newest_); }
  void Discard(uint64_t step) override { inner_->Discard(step); }

 private:
  const std::unique_ptr<JobStore> inner_;
  std::optional<v1::CheckpointManifest> newest_;
};

template <typename Store>
void WrapStore(Site* site) {
  site->seams.store = [](std::unique_ptr<JobStore> inner) {
    return std::make_unique<Store>(std::move(inner));
  };
}

}  // namespace

std::vector<PlantedBug> PlantedOnDisk() {
  return {
      {"epochs start again",
       "a coordinator that starts again counts epochs from 1",
       {Invariant::kEpochs},
       Forget(true, false)},
      {"checkpoint forgotten",
       "a coordinator that starts again begins anew",
       {Invariant::kRestored},
       Forget(false, true)},
      {"no fsync", "files are closed, not synced", {Invariant::kRestored}, WrapFiles<NoSync>},
      {"no fsync of folders",
       "a name may be lost after it was counted on",
       {Invariant::kRestored},
       WrapFiles<NoFolderSync>},
      {"acknowledged before durable",
       "a checkpoint counts before its manifest is written",
       {Invariant::kRestored},
       WrapStore<HastyStore>},
      {"two coordinators both commit",
       "a store that another coordinator has taken says that all is well",
       {Invariant::kReplaced},
       WrapStore<NeverReplaced>},
      {"damaged checkpoint again",
       "where the newest checkpoint is damaged, it is loaded again instead of the one before",
       {Invariant::kProgress},
       WrapStore<DamagedAgain>},
      {"logged before durable",
       "the log counts a push as on the disk when it is written, not when it is synced",
       {Invariant::kAcknowledged},
       WrapFiles<NoLogSync>},
  };
}

}  // namespace weir
