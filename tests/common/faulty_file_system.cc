#include "tests/common/faulty_file_system.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "common/base/status_macros.h"

namespace weir {
namespace {

absl::Status NoSuch(const std::string& path) {
  return absl::NotFoundError(absl::StrCat(path, ": No such file or directory"));
}

absl::Status Crashed(const std::string& path) {
  return absl::UnavailableError(absl::StrCat(path, ": it was open when the machine crashed"));
}

std::string NameOf(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

// Marks an operation, from its begin to its return, without the lock. Declare it before the lock.
class FaultyFileSystem::Passage {
 public:
  explicit Passage(FaultyFileSystem& disk) : disk_(disk) { disk_.Pause(Moment::kBefore); }
  ~Passage() { disk_.Pause(Moment::kAfter); }
  Passage(const Passage&) = delete;
  Passage& operator=(const Passage&) = delete;

 private:
  FaultyFileSystem& disk_;
};

class FaultyFileSystem::OpenForWriting final : public WritableFile {
 public:
  OpenForWriting(FaultyFileSystem& disk, std::string path, std::shared_ptr<Node> node, uint64_t crashes)
      : disk_(disk), path_(std::move(path)), node_(std::move(node)), crashes_(crashes) {}

  absl::Status Append(absl::string_view data) override {
    const Passage passage(disk_);
    MutexLock lock(disk_.mutex_);
    if (crashes_ != disk_.crashes_) return Crashed(path_);
    absl::Status status = disk_.Count(Kind::kAppend, path_);
    if (!status.ok()) {
      data = data.substr(0, disk_.random_.NextBelow(static_cast<uint32_t>(data.size()) + 1));
    }
    if (data.size() > disk_.capacity_ - std::min(disk_.capacity_, disk_.used_)) {
      data = data.substr(0, disk_.capacity_ - std::min(disk_.capacity_, disk_.used_));
      status =
          absl::ResourceExhaustedError(absl::StrCat("cannot write ", path_, ": No space left on device"));
    }
    node_->content.append(data.data(), data.size());
    disk_.used_ += data.size();
    return status;
  }

  absl::Status Sync() override { return disk_.SyncFile(path_, *node_, crashes_); }

  absl::Status Close() override {
    const Passage passage(disk_);
    MutexLock lock(disk_.mutex_);
    if (crashes_ != disk_.crashes_) return Crashed(path_);
    return disk_.Count(Kind::kClose, path_);
  }

 private:
  FaultyFileSystem& disk_;
  const std::string path_;
  const std::shared_ptr<Node> node_;
  const uint64_t crashes_;  // of the disk, before the file was opened
};

class FaultyFileSystem::OpenForReading final : public ReadableFile {
 public:
  OpenForReading(FaultyFileSystem& disk, std::string path, std::shared_ptr<Node> node, uint64_t size,
                 uint64_t crashes)
      : disk_(disk), path_(std::move(path)), node_(std::move(node)), size_(size), crashes_(crashes) {}

  uint64_t size() const override { return size_; }

  absl::Status Read(uint64_t offset, absl::Span<char> out) const override {
    const Passage passage(disk_);
    MutexLock lock(disk_.mutex_);
    if (crashes_ != disk_.crashes_) return Crashed(path_);
    WEIR_RETURN_IF_ERROR(disk_.Count(Kind::kRead, path_));
    const std::string& content = node_->content;
    if (offset > content.size() || out.size() > content.size() - offset) {
      return absl::DataLossError(absl::StrCat("cannot read ", path_, ": it ends at byte ", content.size()));
    }
    std::copy_n(content.data() + offset, out.size(), out.data());
    return absl::OkStatus();
  }

  absl::Status Sync() const override { return disk_.SyncFile(path_, *node_, crashes_); }

 private:
  FaultyFileSystem& disk_;
  const std::string path_;
  const std::shared_ptr<Node> node_;
  const uint64_t size_;
  const uint64_t crashes_;
};

class FaultyFileSystem::View final : public FileSystem {
 public:
  explicit View(FaultyFileSystem& disk) : disk_(disk), node_(nullptr), crashes_(0) {}
  View(FaultyFileSystem& disk, std::string folder, std::shared_ptr<Node> node, uint64_t crashes)
      : disk_(disk), folder_(std::move(folder)), node_(std::move(node)), crashes_(crashes) {}

  absl::StatusOr<std::unique_ptr<FileSystem>> OpenFolder(const std::string& path) override {
    const Passage passage(disk_);
    MutexLock lock(disk_.mutex_);
    WEIR_RETURN_IF_ERROR(Begin(Kind::kOpenFolder, path));
    WEIR_ASSIGN_OR_RETURN(std::shared_ptr<Node> node, FolderAt(path));
    return std::make_unique<View>(disk_, path, std::move(node), disk_.crashes_);
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path, Existing existing) override {
    const Passage passage(disk_);
    MutexLock lock(disk_.mutex_);
    WEIR_RETURN_IF_ERROR(Begin(Kind::kCreate, path));
    WEIR_ASSIGN_OR_RETURN(Node* const parent, ParentOf(path));
    if (existing == Existing::kKeep && parent->entries.count(NameOf(path)) > 0) {
      return absl::AlreadyExistsError(absl::StrCat("cannot create ", path, ": File exists"));
    }
    auto node = std::make_shared<Node>();
    disk_.Apply(*parent, {"", NameOf(path), node});
    return std::make_unique<OpenForWriting>(disk_, path, std::move(node), disk_.crashes_);
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    const Passage passage(disk_);
    MutexLock lock(disk_.mutex_);
    WEIR_RETURN_IF_ERROR(Begin(Kind::kOpen, path));
    WEIR_ASSIGN_OR_RETURN(Node* const parent, ParentOf(path));
    const auto found = parent->entries.find(NameOf(path));
    if (found == parent->entries.end()) return NoSuch(path);
    if (found->second->is_folder) {
      return absl::FailedPreconditionError(absl::StrCat(path, ": it is not a file"));
    }
    return std::make_unique<OpenForReading>(disk_, path, found->second, found->second->content.size(),
                                            disk_.crashes_);
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    return DoRename(from, to, /*replace=*/true);
  }
  absl::Status RenameNew(const std::string& from, const std::string& to) override {
    return DoRename(from, to, /*replace=*/false);
  }
  absl::Status Remove(const std::string& path) override { return DoRemove(Kind::kRemove, path); }
  absl::Status RemoveFolder(const std::string& path) override { return DoRemove(Kind::kRemoveFolder, path); }

  absl::Status MakeFolder(const std::string& path) override {
    const Passage passage(disk_);
    MutexLock lock(disk_.mutex_);
    WEIR_RETURN_IF_ERROR(Begin(Kind::kMakeFolder, path));
    if (const auto node = Find(path); node != nullptr) {
      return node->is_folder ? absl::OkStatus()
                             : absl::AlreadyExistsError(absl::StrCat(path, ": File exists"));
    }
    WEIR_ASSIGN_OR_RETURN(Node* const parent, ParentOf(path));
    auto node = std::make_shared<Node>();
    node->is_folder = true;
    disk_.Apply(*parent, {"", NameOf(path), std::move(node)});
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    const Passage passage(disk_);
    MutexLock lock(disk_.mutex_);
    WEIR_RETURN_IF_ERROR(Begin(Kind::kList, folder));
    WEIR_ASSIGN_OR_RETURN(const std::shared_ptr<Node> node, FolderAt(folder));
    std::vector<std::string> names;
    for (const auto& [name, child] : node->entries) names.push_back(name);
    return names;
  }

  absl::Status SyncFolder(const std::string& folder) override {
    const Passage passage(disk_);
    MutexLock lock(disk_.mutex_);
    WEIR_RETURN_IF_ERROR(Begin(Kind::kSyncFolder, folder));
    WEIR_ASSIGN_OR_RETURN(const std::shared_ptr<Node> node, FolderAt(folder));
    node->synced_entries = node->entries;
    node->changes.clear();
    return absl::OkStatus();
  }

 private:
  absl::Status Begin(Kind kind, const std::string& path) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_.mutex_) {
    if (node_ != nullptr && crashes_ != disk_.crashes_) return Crashed(folder_);
    return disk_.Count(kind, path);
  }

  // nullptr: no such file or folder.
  std::shared_ptr<Node> Find(absl::string_view path) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_.mutex_) {
    absl::string_view rest = path;
    if (node_ != nullptr && absl::ConsumePrefix(&rest, folder_) && (rest.empty() || rest[0] == '/')) {
      return FindFrom(node_, rest);
    }
    return FindFrom(disk_.root_, path);
  }

  absl::StatusOr<std::shared_ptr<Node>> FolderAt(const std::string& path) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_.mutex_) {
    std::shared_ptr<Node> node = Find(path);
    if (node == nullptr || !node->is_folder) return NoSuch(path);
    return node;
  }

  absl::StatusOr<Node*> ParentOf(const std::string& path) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_.mutex_) {
    const std::shared_ptr<Node> parent = Find(ParentFolder(path));
    if (parent == nullptr || !parent->is_folder || parent->gone) return NoSuch(path);
    return parent.get();
  }

  absl::Status DoRename(const std::string& from, const std::string& to, bool replace) {
    const Passage passage(disk_);
    MutexLock lock(disk_.mutex_);
    WEIR_RETURN_IF_ERROR(Begin(Kind::kRename, to));
    if (ParentFolder(from) != ParentFolder(to)) {
      return absl::InvalidArgumentError(absl::StrCat("cannot rename ", from, " to ", to, ", another folder"));
    }
    WEIR_ASSIGN_OR_RETURN(Node* const parent, ParentOf(from));
    const auto found = parent->entries.find(NameOf(from));
    if (found == parent->entries.end()) return NoSuch(from);
    if (!replace && parent->entries.count(NameOf(to)) > 0) {
      return absl::AlreadyExistsError(absl::StrCat("cannot rename ", from, " to ", to, ": File exists"));
    }
    disk_.Apply(*parent, {NameOf(from), NameOf(to), found->second});
    return absl::OkStatus();
  }

  absl::Status DoRemove(Kind kind, const std::string& path) {
    const Passage passage(disk_);
    MutexLock lock(disk_.mutex_);
    WEIR_RETURN_IF_ERROR(Begin(kind, path));
    WEIR_ASSIGN_OR_RETURN(Node* const parent, ParentOf(path));
    const auto found = parent->entries.find(NameOf(path));
    if (found == parent->entries.end()) return NoSuch(path);
    if (found->second->is_folder != (kind == Kind::kRemoveFolder) || !found->second->entries.empty()) {
      return absl::FailedPreconditionError(absl::StrCat("cannot remove ", path));
    }
    found->second->gone = true;
    disk_.Apply(*parent, {NameOf(path), "", nullptr});
    return absl::OkStatus();
  }

  FaultyFileSystem& disk_;
  const std::string folder_;
  const std::shared_ptr<Node> node_;
  const uint64_t crashes_;
};

FaultyFileSystem::FaultyFileSystem(uint64_t seed)
    : random_(RandomKey(seed, "faulty file system"), 0),
      root_(std::make_shared<Node>()),
      view_(std::make_unique<View>(*this)) {
  root_->is_folder = true;
}

FaultyFileSystem::~FaultyFileSystem() = default;

void FaultyFileSystem::SetFault(std::function<absl::Status(const Operation&)> fault) {
  MutexLock lock(mutex_);
  fault_ = std::move(fault);
}

void FaultyFileSystem::SetPause(std::function<void(Moment)> pause) {
  MutexLock lock(mutex_);
  pause_ = std::move(pause);
}

void FaultyFileSystem::Pause(Moment moment) {
  std::function<void(Moment)> pause;
  {
    MutexLock lock(mutex_);
    pause = pause_;
  }
  if (pause) pause(moment);
}

absl::Status FaultyFileSystem::SyncFile(const std::string& path, Node& node, uint64_t crashes) {
  const Passage passage(*this);
  MutexLock lock(mutex_);
  if (crashes != crashes_) return Crashed(path);
  const absl::Status status = Count(Kind::kSync, path);
  if (status.ok()) {
    node.synced.append(node.content, node.synced.size(), std::string::npos);
  } else if (!absl::IsCancelled(status)) {
    node.synced.resize(node.content.size(), '\0');
  }
  return status;
}

void FaultyFileSystem::SetCapacity(uint64_t bytes) {
  MutexLock lock(mutex_);
  capacity_ = bytes;
}

uint64_t FaultyFileSystem::operations() const {
  MutexLock lock(mutex_);
  return operations_;
}

uint64_t FaultyFileSystem::bytes_used() const {
  MutexLock lock(mutex_);
  return used_;
}

std::string FaultyFileSystem::Contents(const std::string& path) const {
  MutexLock lock(mutex_);
  const std::shared_ptr<Node> node = FindFrom(root_, path);
  return node == nullptr ? "" : node->content;
}

void FaultyFileSystem::SetContents(const std::string& path, std::string contents) {
  MutexLock lock(mutex_);
  const std::shared_ptr<Node> node = FindFrom(root_, path);
  node->content = node->synced = std::move(contents);
  used_ = BytesOf(*root_);
}

void FaultyFileSystem::Crash() {
  MutexLock lock(mutex_);
  ++crashes_;
  Forget(*root_);
  used_ = BytesOf(*root_);
}

void FaultyFileSystem::Forget(Node& node) {
  node.gone = false;  // its removal may be forgotten, too
  const size_t unsynced = node.content.size() - node.synced.size();
  if (unsynced > 0) {
    // The file may have grown before its data were written.
    const size_t kept = random_.NextBelow(static_cast<uint32_t>(unsynced) + 1);
    const size_t zeros = random_.NextBelow(4) == 0 ? random_.NextBelow(static_cast<uint32_t>(kept) + 1) : 0;
    node.synced.append(node.content, node.synced.size(), kept - zeros);
    node.synced.append(zeros, '\0');
  }
  node.content = node.synced;
  for (const Change& change : std::exchange(node.changes, {})) {
    if (random_.NextBelow(2) == 0) continue;
    if (!change.removed.empty()) node.synced_entries.erase(change.removed);
    if (!change.added.empty()) node.synced_entries[change.added] = change.node;
  }
  node.entries = node.synced_entries;
  for (const auto& [name, child] : node.entries) Forget(*child);
}

uint64_t FaultyFileSystem::BytesOf(const Node& node) {
  uint64_t bytes = node.content.size();
  for (const auto& [name, child] : node.entries) bytes += BytesOf(*child);
  return bytes;
}

absl::Status FaultyFileSystem::Count(Kind kind, const std::string& path) {
  const Operation operation{operations_++, kind, path};
  return fault_ == nullptr ? absl::OkStatus() : fault_(operation);
}

std::shared_ptr<FaultyFileSystem::Node> FaultyFileSystem::FindFrom(std::shared_ptr<Node> node,
                                                                   absl::string_view path) {
  for (const absl::string_view name : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    const auto found = node->entries.find(std::string(name));
    if (found == node->entries.end()) return nullptr;
    node = found->second;
  }
  return node;
}

void FaultyFileSystem::Apply(Node& folder, Change change) {
  if (!change.removed.empty()) folder.entries.erase(change.removed);
  if (!change.added.empty()) folder.entries[change.added] = change.node;
  folder.changes.push_back(std::move(change));
  used_ = BytesOf(*root_);
}

absl::StatusOr<std::unique_ptr<FileSystem>> FaultyFileSystem::OpenFolder(const std::string& path) {
  return view_->OpenFolder(path);
}
absl::StatusOr<std::unique_ptr<WritableFile>> FaultyFileSystem::Create(const std::string& path,
                                                                       Existing existing) {
  return view_->Create(path, existing);
}
absl::StatusOr<std::unique_ptr<ReadableFile>> FaultyFileSystem::Open(const std::string& path) {
  return view_->Open(path);
}
absl::Status FaultyFileSystem::Rename(const std::string& from, const std::string& to) {
  return view_->Rename(from, to);
}
absl::Status FaultyFileSystem::RenameNew(const std::string& from, const std::string& to) {
  return view_->RenameNew(from, to);
}
absl::Status FaultyFileSystem::Remove(const std::string& path) { return view_->Remove(path); }
absl::Status FaultyFileSystem::MakeFolder(const std::string& path) { return view_->MakeFolder(path); }
absl::Status FaultyFileSystem::RemoveFolder(const std::string& path) { return view_->RemoveFolder(path); }
absl::StatusOr<std::vector<std::string>> FaultyFileSystem::List(const std::string& folder) {
  return view_->List(folder);
}
absl::Status FaultyFileSystem::SyncFolder(const std::string& folder) { return view_->SyncFolder(folder); }

}  // namespace weir
