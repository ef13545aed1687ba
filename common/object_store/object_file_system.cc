#include "common/object_store/object_file_system.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <future>
#include <optional>
#include <system_error>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/config/written_text.h"
#include "common/object_store/object_store.h"
#include "common/telemetry/logging.h"
#include "common/threads/mutex.h"

namespace weir {
namespace {

// Data is sent, and read ahead, in pieces of this size. A file that is no longer goes in one request.
constexpr uint64_t kPiece = 8 << 20;
// So many pieces of a file are on their way at once, while the next one is made.
constexpr size_t kOnTheirWay = 2;
// Pieces grow by kPiece after so many, since S3 takes 10,000 a file.
constexpr size_t kPiecesOfOneSize = 1000;

std::string PrefixOf(const ObjectName& folder) {
  return folder.key.empty() ? "" : absl::StrCat(folder.key, "/");
}

absl::Status Refuse(absl::string_view what, const std::string& path) {
  return absl::UnimplementedError(
      absl::StrCat("cannot ", what, " ", path, ": in object storage a file is there once it is whole"));
}

// A file that becomes an object when it is published.
class StagedObject final : public StagedFile {
 public:
  StagedObject(ObjectStore& store, ObjectName name, ObjectStore::Condition free)
      : store_(store), name_(std::move(name)), free_(std::move(free)) {}
  ~StagedObject() override { Abort(); }

  absl::Status Append(absl::string_view data) override {
    while (!data.empty()) {
      // A full piece is sent only when there is more, since a file of one piece goes in one request.
      if (piece_.size() == piece_limit()) WEIR_RETURN_IF_ERROR(SendPiece());
      const size_t n = std::min<uint64_t>(data.size(), piece_limit() - piece_.size());
      piece_.append(data.data(), n);
      data.remove_prefix(n);
    }
    return absl::OkStatus();
  }

  // What was appended is durable once the file is published.
  absl::Status Sync() override { return absl::OkStatus(); }
  absl::Status Close() override { return absl::OkStatus(); }

  absl::Status Publish(absl::Status written, Existing existing) override {
    if (written.ok() && !upload_.has_value() && piece_.empty()) {
      written = absl::InvalidArgumentError(
          absl::StrCat("cannot put ", name_.ToString(), ": in object storage a file has at least one byte"));
    }
    const ObjectStore::Condition condition = existing == Existing::kKeep ? free_ : ObjectStore::Condition{};
    if (written.ok() && !upload_.has_value()) return store_.Put(name_, piece_, condition);
    if (written.ok()) written = SendPiece();
    while (written.ok() && !sending_.empty()) written = AwaitPiece(&piece_);
    if (written.ok()) written = store_.Complete(*upload_, condition);
    if (written.ok()) upload_.reset();
    Abort();
    return written;
  }

 private:
  struct Sending {
    std::shared_ptr<std::string> piece;
    std::future<absl::StatusOr<ObjectStore::Upload::Part>> part;  // destroyed first: waits for the thread
  };

  uint64_t piece_limit() const { return kPiece * (1 + pieces_ / kPiecesOfOneSize); }

  absl::Status SendPiece() {
    if (!upload_.has_value()) {
      WEIR_ASSIGN_OR_RETURN(upload_, store_.Begin(name_));
    }
    // The next piece takes the memory of one that has left: fresh memory costs as much time as its copy.
    std::string next;
    if (sending_.size() == kOnTheirWay) WEIR_RETURN_IF_ERROR(AwaitPiece(&next));
    next.reserve(piece_limit());
    const auto piece = std::make_shared<std::string>(std::exchange(piece_, std::move(next)));
    const auto send = [this, number = ++pieces_, piece] { return store_.PutPart(*upload_, number, *piece); };
    try {
      sending_.push_back({piece, std::async(std::launch::async, send)});
    } catch (const std::system_error&) {
      // The system cannot start another thread.
      sending_.push_back({piece, std::async(std::launch::deferred, send)});
    }
    return absl::OkStatus();
  }

  // Of the oldest piece on its way. `memory`: an empty string with the piece's memory.
  absl::Status AwaitPiece(std::string* memory) {
    absl::StatusOr<ObjectStore::Upload::Part> part = sending_.front().part.get();
    *memory = std::move(*sending_.front().piece);
    memory->clear();
    sending_.pop_front();
    WEIR_RETURN_IF_ERROR(part.status());
    upload_->parts.push_back(*std::move(part));
    return absl::OkStatus();
  }

  void Abort() {
    if (!upload_.has_value()) return;
    sending_.clear();  // waits for them
    if (const absl::Status aborted = store_.Abort(*upload_); !aborted.ok()) {
      LogInfo("what was sent of ", name_.ToString(), " still takes room: ", aborted.message());
    }
    upload_.reset();
  }

  ObjectStore& store_;
  const ObjectName name_;
  // Holds while the name is free, or reserved as it was when the file was staged.
  const ObjectStore::Condition free_;
  std::string piece_;
  std::optional<ObjectStore::Upload> upload_;
  // How many pieces were sent, or are on their way: the newest ones.
  size_t pieces_ = 0;
  std::deque<Sending> sending_;
};

class ReadableObject final : public ReadableFile {
 public:
  ReadableObject(ObjectStore& store, ObjectName name, ObjectStore::Info info)
      : store_(store), name_(std::move(name)), info_(std::move(info)) {}

  uint64_t size() const override { return info_.bytes; }

  absl::Status Read(uint64_t offset, absl::Span<char> out) const override {
    if (offset > info_.bytes || out.size() > info_.bytes - offset) {
      return absl::DataLossError(absl::StrCat("cannot read ", name_.ToString(), ": it ends at byte ",
                                              info_.bytes, ", before the ", out.size(),
                                              " bytes that should follow byte ", offset));
    }
    if (out.size() >= kPiece) return store_.Read(name_, info_.etag, offset, out);
    MutexLock lock(mutex_);
    while (!out.empty()) {
      if (offset < ahead_begin_ || offset >= ahead_begin_ + ahead_.size()) {
        ahead_.resize(std::min(kPiece, info_.bytes - offset));
        ahead_begin_ = offset;
        const absl::Status read =
            store_.Read(name_, info_.etag, offset, absl::MakeSpan(&ahead_[0], ahead_.size()));
        if (!read.ok()) {
          ahead_.clear();
          return read;
        }
      }
      const size_t at = offset - ahead_begin_;
      const size_t n = std::min(out.size(), ahead_.size() - at);
      std::memcpy(out.data(), ahead_.data() + at, n);
      out.remove_prefix(n);
      offset += n;
    }
    return absl::OkStatus();
  }

  absl::Status Sync() const override { return absl::OkStatus(); }

 private:
  ObjectStore& store_;
  const ObjectName name_;
  const ObjectStore::Info info_;
  mutable Mutex mutex_;
  // A part of the object, since callers read small pieces one after another.
  mutable std::string ahead_ ABSL_GUARDED_BY(mutex_);
  mutable uint64_t ahead_begin_ ABSL_GUARDED_BY(mutex_) = 0;
};

class ObjectFileSystem final : public FileSystem {
 public:
  explicit ObjectFileSystem(std::shared_ptr<ObjectStore> store) : store_(std::move(store)) {}

  absl::StatusOr<std::unique_ptr<FileSystem>> OpenFolder(const std::string& path) override {
    return std::make_unique<ObjectFileSystem>(store_);
  }
  bool HoldsFolders(const std::string& path) const override { return false; }

  absl::Status Reserve(const std::string& path) override { return store_->Reserve(ObjectNameOf(path)); }

  absl::StatusOr<std::unique_ptr<StagedFile>> Stage(const std::string& path,
                                                    const std::string& temporary) override {
    const ObjectName name = ObjectNameOf(path);
    ObjectStore::Condition free{ObjectStore::Condition::kNothing, ""};
    const absl::StatusOr<ObjectStore::Info> there = store_->Look(name);
    if (there.ok() && there->bytes == 0) free = {ObjectStore::Condition::kThisVersion, there->etag};
    if (!there.ok() && !absl::IsNotFound(there.status())) return there.status();
    return std::make_unique<StagedObject>(*store_, name, free);
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    const ObjectName name = ObjectNameOf(path);
    WEIR_ASSIGN_OR_RETURN(ObjectStore::Info info, store_->Look(name));
    if (info.bytes == 0) {
      return absl::NotFoundError(
          absl::StrCat("cannot open ", path, ": its name is reserved, and there is no file yet"));
    }
    return std::make_unique<ReadableObject>(*store_, name, std::move(info));
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path, Existing) override {
    return Refuse("create", path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return Refuse("rename", from);
  }
  absl::Status RenameNew(const std::string& from, const std::string& to) override {
    return Refuse("rename", from);
  }

  void EndWithin(absl::Duration time) override { store_->EndWithin(time); }
  absl::Status Remove(const std::string& path) override { return store_->Remove(ObjectNameOf(path)); }
  absl::Status MakeFolder(const std::string& path) override { return absl::OkStatus(); }
  absl::Status SyncFolder(const std::string& folder) override { return absl::OkStatus(); }

  absl::Status RemoveFolder(const std::string& path) override {
    const ObjectName folder = ObjectNameOf(path);
    WEIR_ASSIGN_OR_RETURN(const std::vector<ObjectStore::Upload> uploads,
                          store_->Unfinished(folder.bucket, PrefixOf(folder)));
    for (const ObjectStore::Upload& upload : uploads) WEIR_RETURN_IF_ERROR(store_->Abort(upload));
    WEIR_ASSIGN_OR_RETURN(const ObjectStore::Listing left, store_->List(folder.bucket, PrefixOf(folder)));
    if (left.objects.empty() && left.folders.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("cannot remove folder ", path, ": it is not empty"));
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    const ObjectName folder = ObjectNameOf(path);
    WEIR_ASSIGN_OR_RETURN(ObjectStore::Listing listing, store_->List(folder.bucket, PrefixOf(folder)));
    if (listing.objects.empty() && listing.folders.empty()) {
      return absl::NotFoundError(absl::StrCat("cannot list ", path, ": there is nothing"));
    }
    std::vector<std::string> names = std::move(listing.folders);
    for (auto& [name, bytes] : listing.objects) {
      if (bytes > 0) names.push_back(std::move(name));
    }
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  const std::shared_ptr<ObjectStore> store_;
};

// Each path to where it belongs.
class StorageByPath final : public FileSystem {
 public:
  explicit StorageByPath(FileSystem& disk) : disk_(disk) {}

  absl::StatusOr<std::unique_ptr<FileSystem>> OpenFolder(const std::string& path) override {
    return Do(&FileSystem::OpenFolder, path);
  }
  bool HoldsFolders(const std::string& path) const override {
    return !IsObjectPath(path) && disk_.HoldsFolders(path);
  }
  absl::Status Reserve(const std::string& path) override { return Do(&FileSystem::Reserve, path); }
  void EndWithin(absl::Duration time) override {
    MutexLock lock(mutex_);
    if (objects_ != nullptr) objects_->EndWithin(time);
  }
  absl::StatusOr<std::unique_ptr<StagedFile>> Stage(const std::string& path,
                                                    const std::string& temporary) override {
    return Do(&FileSystem::Stage, path, temporary);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path, Existing existing) override {
    return Do(&FileSystem::Create, path, existing);
  }
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    return Do(&FileSystem::Open, path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return Do(&FileSystem::Rename, from, to);
  }
  absl::Status RenameNew(const std::string& from, const std::string& to) override {
    return Do(&FileSystem::RenameNew, from, to);
  }
  absl::Status Remove(const std::string& path) override { return Do(&FileSystem::Remove, path); }
  absl::Status MakeFolder(const std::string& path) override { return Do(&FileSystem::MakeFolder, path); }
  absl::Status RemoveFolder(const std::string& path) override { return Do(&FileSystem::RemoveFolder, path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    return Do(&FileSystem::List, folder);
  }
  absl::Status SyncFolder(const std::string& folder) override { return Do(&FileSystem::SyncFolder, folder); }

 private:
  template <typename Result, typename... More>
  Result Do(Result (FileSystem::*what)(const std::string&, More...), const std::string& path,
            std::common_type_t<More>... more) {
    WEIR_ASSIGN_OR_RETURN(FileSystem* const at, At(path));
    return (at->*what)(path, more...);
  }

  absl::StatusOr<FileSystem*> At(const std::string& path) {
    if (!IsObjectPath(path)) return &disk_;
    WEIR_RETURN_IF_ERROR(CheckObjectPath(path));
    MutexLock lock(mutex_);
    if (objects_ == nullptr) {
      ObjectStore::Options options;
      WEIR_ASSIGN_OR_RETURN(options.settings, S3Settings::FromEnvironment());
      objects_ = NewObjectFileSystem(std::make_unique<ObjectStore>(std::move(options)));
    }
    return objects_.get();
  }

  FileSystem& disk_;
  Mutex mutex_;
  std::unique_ptr<FileSystem> objects_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<FileSystem> NewObjectFileSystem(std::unique_ptr<ObjectStore> store) {
  return std::make_unique<ObjectFileSystem>(std::move(store));
}

std::unique_ptr<FileSystem> WithObjectStorage(FileSystem& disk) {
  return std::make_unique<StorageByPath>(disk);
}

FileSystem& AnyStorage() {
  static FileSystem* const storage = WithObjectStorage(FileSystem::Posix()).release();
  return *storage;
}

}  // namespace weir
