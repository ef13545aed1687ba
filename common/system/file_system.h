#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace weir {

// A file that is written once, from its start. Not thread-safe. Its destructor closes it; what was not synced
// may be lost. After an error the file's content is unspecified: remove it.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual absl::Status Append(absl::string_view data) = 0;
  // Returns when all that was appended is on the disk. After an error it may never be: don't try again.
  virtual absl::Status Sync() = 0;
  // Called once, last.
  virtual absl::Status Close() = 0;
};

// A file that is written under another name, or none, and gets its own only once it is whole
// (FileSystem::Stage). Not thread-safe. If it is never published, its destructor leaves no file of that name.
class StagedFile : public WritableFile {
 public:
  enum class Existing { kKeep, kReplace };
  // Called once, last. If the file was `written` whole, synced and closed: gives it its name, durably;
  // AlreadyExists: kKeep, and the name is taken. If not, or if the file cannot have the name, removes what
  // was written (a full disk needs the room now) and returns why. The file may be there anyway after an error
  // that comes from making the name durable.
  virtual absl::Status Publish(absl::Status written, Existing existing) = 0;
};

// A file that is read. Thread-safe.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  // The size when the file was opened.
  virtual uint64_t size() const = 0;
  // Fills all of `out` from this offset on. DataLoss: the file ends before that.
  virtual absl::Status Read(uint64_t offset, absl::Span<char> out) const = 0;
  // Returns when all that the file holds is on the disk, whichever process has written it: a process that
  // died before it synced has left its data in the system's memory.
  virtual absl::Status Sync() const = 0;
};

// Files and folders, so that tests can put a faulty disk under what must survive one
// (tests/common/faulty_file_system.h). Thread-safe. Every error names the path and the system's reason;
// NotFound, AlreadyExists, PermissionDenied and ResourceExhausted (a full disk) mean what they say.
//
// No file is ever written through a symbolic link, and only the name of a file or a link is ever taken over.
//
// A file's content outlives a crash of the machine once the file is synced. Its name, a new name and its
// removal do once the folder is synced.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // The machine's. Lives for ever.
  static FileSystem& Posix();
  // The machine's, but no symbolic link is followed beneath this folder, where others may put things: a path
  // that contains a link is refused with PermissionDenied. The folder itself may be reached through links,
  // and need not be there yet.
  static std::unique_ptr<FileSystem> Beneath(std::string folder);

  // Holds a folder: through the result, paths that lead into the folder lead into this very one, whatever has
  // its name meanwhile, and no link beneath it is followed. Once the folder is removed nothing can be made in
  // it: NotFound. Other paths are not affected.
  virtual absl::StatusOr<std::unique_ptr<FileSystem>> OpenFolder(const std::string& path) = 0;

  // The fate of a file, or a link, that already has the wanted name: it stays (AlreadyExists), or it goes.
  // The file that a link leads to stays.
  using Existing = StagedFile::Existing;
  // Creates a file.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path,
                                                               Existing existing = Existing::kReplace) = 0;
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) = 0;
  // Within one folder. A file that has the new name is replaced: at no time is there none.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // As Rename(), but AlreadyExists if something has the new name.
  virtual absl::Status RenameNew(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Remove(const std::string& path) = 0;
  // OK if the folder is there. NotFound: its parent is not.
  virtual absl::Status MakeFolder(const std::string& path) = 0;
  // The folder must be empty.
  virtual absl::Status RemoveFolder(const std::string& path) = 0;
  // Names of what is in the folder, sorted, without "." and "..".
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& folder) = 0;
  virtual absl::Status SyncFolder(const std::string& folder) = 0;

  // Begins a file that gets this name only when it is published. On a disk it is written as `temporary`, in
  // the same folder.
  virtual absl::StatusOr<std::unique_ptr<StagedFile>> Stage(const std::string& path,
                                                            const std::string& temporary);
  // Whether a folder can be held (OpenFolder) against its removal, and against a new folder of its name. If
  // not (object storage), a name is not to be used again for another folder, and a file that must not appear
  // once its folder was removed needs a reservation.
  virtual bool HoldsFolders(const std::string& path) const;
  // Where folders cannot be held: reserves a name for one file. While the reservation is there, it is no file
  // for List() and Open(). A file that is staged from now on gets the name only if the reservation is still
  // there then: Remove() ends it. AlreadyExists: the name is taken. Unavailable: the reservation may be
  // there, or may come late, once: use another name.
  virtual absl::Status Reserve(const std::string& path);
  // From so much later on all that waits for a network fails with Unavailable: this process ends. A disk has
  // nothing of that kind.
  virtual void EndWithin(absl::Duration time) {}

  // Reads the whole file. DataLoss: it has more than `max_bytes`.
  absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t max_bytes);
  // Creates a file that holds `data`, and syncs it.
  absl::Status WriteFile(const std::string& path, absl::string_view data);
  // Stages a file that holds `data`. Calls `confirm`, if there is one, and publishes the file if that is OK.
  absl::Status WriteNew(const std::string& path, const std::string& temporary, absl::string_view data,
                        const std::function<absl::Status()>& confirm = nullptr);
};

// Whether a write that has failed so may succeed later, as it is: a full disk, a quota that is used up, an
// I/O error. One that is refused (no permission, a disk that is mounted read-only) would be refused again;
// object storage has tried again before it says Unavailable.
bool MayPass(const absl::Status& status);

// "a/b" for "a" and "b".
std::string JoinPath(absl::string_view folder, absl::string_view name);
// "a" for "a/b", "/" for "/b", "." for "b".
std::string ParentFolder(absl::string_view path);

// Whatever is written to disk for later versions of Weir says which format it has, major.minor. A minor
// version adds fields, which an earlier reader ignores. A reader can tell nothing of a later major version,
// so it refuses the file. It never passes the file over for something older, which would lose progress
// silently.
struct DiskFormat {
  // 0 in files from before there were versions, which are 1.0.
  uint64_t major = 0;
  uint64_t minor = 0;
};

// Unimplemented: only a newer Weir can read `path`, a `what`, because its major version is later than
// `known`.
inline absl::Status CheckMajor(absl::string_view path, absl::string_view what, DiskFormat found,
                               DiskFormat known) {
  if (found.major <= known.major) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(path, ": this ", what, " has format ", found.major, ".",
                                               found.minor, "; this Weir reads formats up to ", known.major,
                                               ".x. Use the version of Weir that wrote it, or a later one"));
}

// For a file that cannot be read though its checksum fits: if its minor version is later, the file is not
// damaged, but holds something that this program does not know.
inline bool IsLater(DiskFormat found, DiskFormat known) {
  return found.major == known.major && found.minor > known.minor;
}

}  // namespace weir
