#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/system/file_system.h"
#include "common/threads/mutex.h"

namespace weir {

// A disk in memory that fills, fails and forgets unsynced data. All its random choices follow from its seed
// and the order of the calls. Paths start with "/", which exists. Thread-safe.
class FaultyFileSystem final : public FileSystem {
 public:
  enum class Kind {
    kCreate,
    kAppend,
    kSync,
    kClose,
    kOpen,
    kRead,
    kRename,
    kRemove,
    kMakeFolder,
    kRemoveFolder,
    kList,
    kSyncFolder,
    kOpenFolder
  };
  struct Operation {
    uint64_t number;  // from 0, over the lifetime of this disk
    Kind kind;
    std::string path;  // of a rename, the new path
  };

  explicit FaultyFileSystem(uint64_t seed);
  ~FaultyFileSystem() override;

  // Called before each operation; a status that is not OK is the operation's result. On an error an append
  // writes a part of its data, a sync loses the unsynced data on the disk (as on Linux, which never syncs
  // them again), and all other operations do nothing. Cancelled: the caller is dying; then a sync does
  // nothing, either. Must not call the file system. May be null.
  void SetFault(std::function<absl::Status(const Operation&)> fault);
  // Called before each operation takes effect, and again before it returns: the function may use this file
  // system, as faster callers would. May be null.
  enum class Moment { kBefore, kAfter };
  void SetPause(std::function<void(Moment)> pause);
  // The bytes of all files together. An append beyond this limit writes what fits, then fails with
  // ResourceExhausted.
  void SetCapacity(uint64_t bytes);
  // The machine loses its power and starts again. A file keeps what was synced, and some of the rest, perhaps
  // as zeros at its end; a folder keeps what was synced, and some of the later changes. Open files fail.
  void Crash();

  uint64_t operations() const;
  uint64_t bytes_used() const;
  // "" if there is no such file.
  std::string Contents(const std::string& path) const;
  // Sets the contents of an existing file; on the disk too.
  void SetContents(const std::string& path, std::string contents);

  absl::StatusOr<std::unique_ptr<FileSystem>> OpenFolder(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path,
                                                       Existing existing = Existing::kReplace) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status RenameNew(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status MakeFolder(const std::string& path) override;
  absl::Status RemoveFolder(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override;
  absl::Status SyncFolder(const std::string& folder) override;

 private:
  class OpenForWriting;
  class OpenForReading;
  // The operations, through a held folder or directly.
  class View;
  class Passage;
  struct Node;
  using Entries = std::map<std::string, std::shared_ptr<Node>>;
  // A folder's entry is added, removed, or renamed; on the disk all of it happens or none.
  struct Change {
    std::string removed;  // "": none
    std::string added;    // "": none
    std::shared_ptr<Node> node;
  };
  // A file or a folder.
  struct Node {
    bool is_folder = false;
    // The folder was removed: nothing can be made in it.
    bool gone = false;
    // A file's content, and the synced beginning of it, as on the disk.
    std::string content, synced;
    // A folder's entries, the synced ones, and the changes since.
    Entries entries, synced_entries;
    std::vector<Change> changes;
  };

  void Pause(Moment moment) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status SyncFile(const std::string& path, Node& node, uint64_t crashes) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Count(Kind kind, const std::string& path) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Searches from `node` on. nullptr: no such file or folder.
  static std::shared_ptr<Node> FindFrom(std::shared_ptr<Node> node, absl::string_view path);
  void Apply(Node& folder, Change change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(Node& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static uint64_t BytesOf(const Node& node);

  mutable Mutex mutex_;
  std::function<absl::Status(const Operation&)> fault_ ABSL_GUARDED_BY(mutex_);
  std::function<void(Moment)> pause_ ABSL_GUARDED_BY(mutex_);
  uint64_t capacity_ ABSL_GUARDED_BY(mutex_) = UINT64_MAX;
  uint64_t used_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t operations_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t crashes_ ABSL_GUARDED_BY(mutex_) = 0;
  RandomStream random_ ABSL_GUARDED_BY(mutex_);
  const std::shared_ptr<Node> root_ ABSL_PT_GUARDED_BY(mutex_);
  const std::unique_ptr<View> view_;  // without a held folder
};

}  // namespace weir
