#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weir {

// A file that is written once, from its start. Not thread-safe. Its destructor closes it; what was not synced
// may be lost. After an error what the file holds is open: remove it.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual absl::Status Append(absl::string_view data) = 0;
  // Returns when all that was appended is on the disk. After an error it may never be: don't try again.
  virtual absl::Status Sync() = 0;
  // Once, last.
  virtual absl::Status Close() = 0;
};

// A file that is read. Thread-safe.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  // When it was opened.
  virtual uint64_t size() const = 0;
  // Fills all of `out` from this offset on. DataLoss: the file ends before that.
  virtual absl::Status Read(uint64_t offset, absl::Span<char> out) const = 0;
  // Returns when all that it holds is on the disk, whoever has written it: who has died before he synced it
  // has left it in the system's memory.
  virtual absl::Status Sync() const = 0;
};

// Files and folders, so that tests can put a faulty disk under what must survive one
// (tests/common/faulty_file_system.h). Thread-safe. Every error names the path and the system's reason;
// NotFound, AlreadyExists, PermissionDenied and ResourceExhausted (a full disk) mean what they say.
//
// No file is ever written through a symbolic link, and no name is taken that is not a file's.
//
// A file's content outlives a crash of the machine once the file is synced; its name, a new name, and its
// being gone, once the folder is synced.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // The machine's. Lives for ever.
  static FileSystem& Posix();
  // The same, but beneath this folder, where others may put things, no symbolic link is followed: a path with
  // one in it is refused with PermissionDenied. The folder itself may be reached through links, and need not
  // be there yet.
  static std::unique_ptr<FileSystem> Beneath(std::string folder);

  // Holds a folder: through the result, paths that lead into it lead into this very folder, whatever bears
  // its name meanwhile, and no link beneath it is followed. Once it is removed nothing can be made in it:
  // NotFound. Other paths are as without it.
  virtual absl::StatusOr<std::unique_ptr<FileSystem>> OpenFolder(const std::string& path) = 0;

  // What becomes of a file, or a link, that bears a name which is to be given: AlreadyExists, or it goes.
  // What a link leads to stays.
  enum class Existing { kKeep, kReplace };
  // A new file.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path,
                                                               Existing existing = Existing::kReplace) = 0;
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) = 0;
  // Within one folder. A file that bears the new name is replaced: at no time is there none.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // Likewise, but AlreadyExists if something bears the new name.
  virtual absl::Status RenameNew(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Remove(const std::string& path) = 0;
  // OK if the folder is there. NotFound: its parent is not.
  virtual absl::Status MakeFolder(const std::string& path) = 0;
  // It must be empty.
  virtual absl::Status RemoveFolder(const std::string& path) = 0;
  // Names of what is in the folder, sorted, without "." and "..".
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& folder) = 0;
  virtual absl::Status SyncFolder(const std::string& folder) = 0;

  // The whole file. DataLoss: it has more than `max_bytes`.
  absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t max_bytes);
  // A new file that holds this, synced.
  absl::Status WriteFile(const std::string& path, absl::string_view data);
  // Gives a temporary file its name for good, if it was `written` whole and synced; else, or where it cannot
  // have the name, clears it away (a full disk needs the room now) and returns why.
  absl::Status Publish(absl::Status written, const std::string& temporary, const std::string& path,
                       Existing existing);
};

// "a/b" for "a" and "b".
std::string JoinPath(absl::string_view folder, absl::string_view name);
// "a" for "a/b", "/" for "/b", "." for "b".
std::string ParentFolder(absl::string_view path);

}  // namespace weir
