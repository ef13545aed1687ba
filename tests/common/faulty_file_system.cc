#include "tests/common/faulty_file_system.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "common/status_macros.h"

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

class FaultyFileSystem::OpenForWriting final : public WritableFile {
 public:
  OpenForWriting(FaultyFileSystem& disk, std::string path, std::shared_ptr<Node> node, uint64_t life)
      : disk_(disk), path_(std::move(path)), node_(std::move(node)), life_(life) {}

  absl::Status Append(absl::string_view data) override {
    MutexLock lock(disk_.mutex_);
    if (life_ != disk_.lives_) return Crashed(path_);
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

  absl::Status Sync() override {
    MutexLock lock(disk_.mutex_);
    if (life_ != disk_.lives_) return Crashed(path_);
    const absl::Status status = disk_.Count(Kind::kSync, path_);
    if (status.ok()) {
      node_->synced.append(node_->content, node_->synced.size(), std::string::npos);
    } else {
      node_->synced.resize(node_->content.size(), '\0');
    }
    return status;
  }

  absl::Status Close() override {
    MutexLock lock(disk_.mutex_);
    if (life_ != disk_.lives_) return Crashed(path_);
    return disk_.Count(Kind::kClose, path_);
  }

 private:
  FaultyFileSystem& disk_;
  const std::string path_;
  const std::shared_ptr<Node> node_;
  const uint64_t life_;
};

class FaultyFileSystem::OpenForReading final : public ReadableFile {
 public:
  OpenForReading(FaultyFileSystem& disk, std::string path, std::shared_ptr<Node> node, uint64_t size,
                 uint64_t life)
      : disk_(disk), path_(std::move(path)), node_(std::move(node)), size_(size), life_(life) {}

  uint64_t size() const override { return size_; }

  absl::Status Read(uint64_t offset, absl::Span<char> out) const override {
    MutexLock lock(disk_.mutex_);
    if (life_ != disk_.lives_) return Crashed(path_);
    WEIR_RETURN_IF_ERROR(disk_.Count(Kind::kRead, path_));
    const std::string& content = node_->content;
    if (offset > content.size() || out.size() > content.size() - offset) {
      return absl::DataLossError(absl::StrCat("cannot read ", path_, ": it ends at byte ", content.size()));
    }
    std::copy_n(content.data() + offset, out.size(), out.data());
    return absl::OkStatus();
  }

 private:
  FaultyFileSystem& disk_;
  const std::string path_;
  const std::shared_ptr<Node> node_;
  const uint64_t size_;
  const uint64_t life_;
};

FaultyFileSystem::FaultyFileSystem(uint64_t seed)
    : random_(RandomKey(seed, "faulty file system"), 0), root_(std::make_unique<Node>()) {
  root_->is_folder = true;
}

FaultyFileSystem::~FaultyFileSystem() = default;

void FaultyFileSystem::SetFault(std::function<absl::Status(const Operation&)> fault) {
  MutexLock lock(mutex_);
  fault_ = std::move(fault);
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
  const Node* node = Find(path);
  return node == nullptr ? "" : node->content;
}

void FaultyFileSystem::SetContents(const std::string& path, std::string contents) {
  MutexLock lock(mutex_);
  Node* node = Find(path);
  node->content = node->synced = std::move(contents);
  used_ = BytesOf(*root_);
}

void FaultyFileSystem::Crash() {
  MutexLock lock(mutex_);
  ++lives_;
  Forget(*root_);
  used_ = BytesOf(*root_);
}

void FaultyFileSystem::Forget(Node& node) {
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

FaultyFileSystem::Node* FaultyFileSystem::Find(const std::string& path) const {
  Node* node = root_.get();
  for (const absl::string_view name : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    const auto found = node->entries.find(std::string(name));
    if (found == node->entries.end()) return nullptr;
    node = found->second.get();
  }
  return node;
}

absl::StatusOr<FaultyFileSystem::Node*> FaultyFileSystem::ParentOf(const std::string& path) const {
  Node* parent = Find(ParentFolder(path));
  if (parent == nullptr || !parent->is_folder) return NoSuch(path);
  return parent;
}

void FaultyFileSystem::Apply(Node& folder, Change change) {
  if (!change.removed.empty()) folder.entries.erase(change.removed);
  if (!change.added.empty()) folder.entries[change.added] = change.node;
  folder.changes.push_back(std::move(change));
  used_ = BytesOf(*root_);
}

absl::StatusOr<std::unique_ptr<WritableFile>> FaultyFileSystem::Create(const std::string& path) {
  MutexLock lock(mutex_);
  WEIR_RETURN_IF_ERROR(Count(Kind::kCreate, path));
  WEIR_ASSIGN_OR_RETURN(Node* const parent, ParentOf(path));
  auto node = std::make_shared<Node>();
  Apply(*parent, {"", NameOf(path), node});
  return std::make_unique<OpenForWriting>(*this, path, std::move(node), lives_);
}

absl::StatusOr<std::unique_ptr<ReadableFile>> FaultyFileSystem::Open(const std::string& path) {
  MutexLock lock(mutex_);
  WEIR_RETURN_IF_ERROR(Count(Kind::kOpen, path));
  WEIR_ASSIGN_OR_RETURN(Node* const parent, ParentOf(path));
  const auto found = parent->entries.find(NameOf(path));
  if (found == parent->entries.end()) return NoSuch(path);
  if (found->second->is_folder) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": it is not a file"));
  }
  return std::make_unique<OpenForReading>(*this, path, found->second, found->second->content.size(), lives_);
}

absl::Status FaultyFileSystem::Rename(const std::string& from, const std::string& to) {
  return DoRename(from, to, /*replace=*/true);
}

absl::Status FaultyFileSystem::RenameNew(const std::string& from, const std::string& to) {
  return DoRename(from, to, /*replace=*/false);
}

absl::Status FaultyFileSystem::DoRename(const std::string& from, const std::string& to, bool replace) {
  MutexLock lock(mutex_);
  WEIR_RETURN_IF_ERROR(Count(Kind::kRename, to));
  if (ParentFolder(from) != ParentFolder(to)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot rename ", from, " to ", to, ", another folder"));
  }
  WEIR_ASSIGN_OR_RETURN(Node* const parent, ParentOf(from));
  const auto found = parent->entries.find(NameOf(from));
  if (found == parent->entries.end()) return NoSuch(from);
  if (!replace && parent->entries.count(NameOf(to)) > 0) {
    return absl::AlreadyExistsError(absl::StrCat("cannot rename ", from, " to ", to, ": File exists"));
  }
  Apply(*parent, {NameOf(from), NameOf(to), found->second});
  return absl::OkStatus();
}

absl::Status FaultyFileSystem::Remove(const std::string& path) { return DoRemove(Kind::kRemove, path); }

absl::Status FaultyFileSystem::RemoveFolder(const std::string& path) {
  return DoRemove(Kind::kRemoveFolder, path);
}

absl::Status FaultyFileSystem::DoRemove(Kind kind, const std::string& path) {
  MutexLock lock(mutex_);
  WEIR_RETURN_IF_ERROR(Count(kind, path));
  WEIR_ASSIGN_OR_RETURN(Node* const parent, ParentOf(path));
  const auto found = parent->entries.find(NameOf(path));
  if (found == parent->entries.end()) return NoSuch(path);
  if (found->second->is_folder != (kind == Kind::kRemoveFolder) || !found->second->entries.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("cannot remove ", path));
  }
  Apply(*parent, {NameOf(path), "", nullptr});
  return absl::OkStatus();
}

absl::Status FaultyFileSystem::MakeFolder(const std::string& path) {
  MutexLock lock(mutex_);
  WEIR_RETURN_IF_ERROR(Count(Kind::kMakeFolder, path));
  if (const Node* node = Find(path); node != nullptr) {
    return node->is_folder ? absl::OkStatus() : absl::AlreadyExistsError(absl::StrCat(path, ": File exists"));
  }
  WEIR_ASSIGN_OR_RETURN(Node* const parent, ParentOf(path));
  auto node = std::make_shared<Node>();
  node->is_folder = true;
  Apply(*parent, {"", NameOf(path), std::move(node)});
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> FaultyFileSystem::List(const std::string& folder) {
  MutexLock lock(mutex_);
  WEIR_RETURN_IF_ERROR(Count(Kind::kList, folder));
  const Node* node = Find(folder);
  if (node == nullptr || !node->is_folder) return NoSuch(folder);
  std::vector<std::string> names;
  for (const auto& [name, child] : node->entries) names.push_back(name);
  return names;
}

absl::Status FaultyFileSystem::SyncFolder(const std::string& folder) {
  MutexLock lock(mutex_);
  WEIR_RETURN_IF_ERROR(Count(Kind::kSyncFolder, folder));
  Node* node = Find(folder);
  if (node == nullptr || !node->is_folder) return NoSuch(folder);
  node->synced_entries = node->entries;
  node->changes.clear();
  return absl::OkStatus();
}

}  // namespace weir
