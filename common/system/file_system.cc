#include "common/system/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/system/unique_fd.h"

namespace weir {
namespace {

absl::Status ErrnoError(absl::string_view what, absl::string_view path) {
  // Of a network disk: not Aborted, as Abseil has it, which means that another process has the job.
  if (errno == ESTALE)
    return absl::UnavailableError(absl::StrCat(what, " ", path, ": ", std::strerror(errno)));
  return absl::ErrnoToStatus(errno, absl::StrCat(what, " ", path));
}

// Repeats the call while signals interrupt it.
template <typename Call>
auto Retry(const Call& call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  absl::Status Append(absl::string_view data) override {
    return WriteAll(fd_.get(), data) ? absl::OkStatus() : ErrnoError("cannot write", path_);
  }

  absl::Status Sync() override {
    if (Retry([&] { return fsync(fd_.get()); }) < 0) return ErrnoError("cannot sync", path_);
    return absl::OkStatus();
  }

  absl::Status Close() override {
    // On Linux the descriptor is gone even after EINTR.
    if (close(fd_.Release()) < 0 && errno != EINTR) return ErrnoError("cannot close", path_);
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  UniqueFd fd_;
};

class PosixReadableFile final : public ReadableFile {
 public:
  PosixReadableFile(std::string path, UniqueFd fd, uint64_t size)
      : path_(std::move(path)), fd_(std::move(fd)), size_(size) {}

  uint64_t size() const override { return size_; }

  absl::Status Read(uint64_t offset, absl::Span<char> out) const override {
    while (!out.empty()) {
      const ssize_t n =
          Retry([&] { return pread(fd_.get(), out.data(), out.size(), static_cast<off_t>(offset)); });
      if (n < 0 && errno == EIO) {
        return absl::DataLossError(absl::StrCat("cannot read ", path_, ": ", std::strerror(errno)));
      }
      if (n < 0) return ErrnoError("cannot read", path_);
      if (n == 0) {
        return absl::DataLossError(absl::StrCat("cannot read ", path_, ": it ends at byte ", offset,
                                                ", before the ", out.size(), " bytes that should follow"));
      }
      out.remove_prefix(static_cast<size_t>(n));
      offset += static_cast<uint64_t>(n);
    }
    return absl::OkStatus();
  }

  absl::Status Sync() const override {
    if (Retry([&] { return fsync(fd_.get()); }) < 0) return ErrnoError("cannot sync", path_);
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  const UniqueFd fd_;
  const uint64_t size_;
};

class PosixFileSystem final : public FileSystem {
 public:
  PosixFileSystem() = default;
  // Follows no link beneath `root`; resolves paths there from `held`, if that is valid.
  explicit PosixFileSystem(std::string root, UniqueFd held = UniqueFd())
      : root_(WithoutSlash(std::move(root))), held_(std::move(held)) {}

  absl::StatusOr<std::unique_ptr<FileSystem>> OpenFolder(const std::string& path) override {
    WEIR_ASSIGN_OR_RETURN(const Place place, Find(path));
    UniqueFd fd(openat(place.folder(), place.name.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC | place.flags));
    if (!fd.valid()) return Error("cannot open", path, place);
    return std::make_unique<PosixFileSystem>(path, std::move(fd));
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path, Existing existing) override {
    WEIR_ASSIGN_OR_RETURN(const Place place, Find(path));
    // Limited, because another process may put something there again and again.
    for (int attempt = 0; attempt < 3; ++attempt) {
      UniqueFd fd(Retry([&] {
        return openat(place.folder(), place.name.c_str(),
                      O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
      }));
      if (fd.valid()) return std::make_unique<PosixWritableFile>(path, std::move(fd));
      if (errno != EEXIST || existing == Existing::kKeep) return Error("cannot create", path, place);
      const mode_t kind = place.Kind();
      if (kind != 0 && kind != S_IFREG && kind != S_IFLNK) {
        return absl::FailedPreconditionError(
            absl::StrCat("cannot create ", path, ": something that is not a file bears the name"));
      }
      if (unlinkat(place.folder(), place.name.c_str(), 0) < 0 && errno != ENOENT) {
        return Error("cannot replace", path, place);
      }
    }
    return absl::AlreadyExistsError(
        absl::StrCat("cannot create ", path, ": it comes back when it is removed"));
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    WEIR_ASSIGN_OR_RETURN(const Place place, Find(path));
    // Without O_NONBLOCK a named pipe would hold us until a process writes to it.
    UniqueFd fd(Retry([&] {
      return openat(place.folder(), place.name.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | place.flags);
    }));
    if (!fd.valid()) return Error("cannot open", path, place);
    struct stat stat;
    if (fstat(fd.get(), &stat) < 0) return ErrnoError("cannot open", path);
    if (!S_ISREG(stat.st_mode)) {
      return absl::FailedPreconditionError(absl::StrCat("cannot open ", path, ": it is not a file"));
    }
    return std::make_unique<PosixReadableFile>(path, std::move(fd), static_cast<uint64_t>(stat.st_size));
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    WEIR_ASSIGN_OR_RETURN(const Place source, Find(from));
    WEIR_ASSIGN_OR_RETURN(const Place target, Find(to));
    if (renameat(source.folder(), source.name.c_str(), target.folder(), target.name.c_str()) < 0) {
      return ErrnoError(absl::StrCat("cannot rename ", from, " to"), to);
    }
    return absl::OkStatus();
  }

  absl::Status RenameNew(const std::string& from, const std::string& to) override {
    WEIR_ASSIGN_OR_RETURN(const Place source, Find(from));
    WEIR_ASSIGN_OR_RETURN(const Place target, Find(to));
    if (renameat2(source.folder(), source.name.c_str(), target.folder(), target.name.c_str(),
                  RENAME_NOREPLACE) == 0) {
      return absl::OkStatus();
    }
    // Not every file system can do this (NFS), but most can make a second name. There the answer to a link
    // that was made may get lost, and the link is made again: it is ours if it leads to the same file.
    if (errno == EINVAL || errno == ENOSYS) {
      if (linkat(source.folder(), source.name.c_str(), target.folder(), target.name.c_str(), 0) == 0 ||
          (errno == EEXIST && SameFile(source, target))) {
        return Remove(from);
      }
    }
    return ErrnoError(absl::StrCat("cannot rename ", from, " to"), to);
  }

  absl::Status Remove(const std::string& path) override {
    WEIR_ASSIGN_OR_RETURN(const Place place, Find(path));
    if (unlinkat(place.folder(), place.name.c_str(), 0) < 0) return ErrnoError("cannot remove", path);
    return absl::OkStatus();
  }

  absl::Status MakeFolder(const std::string& path) override {
    WEIR_ASSIGN_OR_RETURN(const Place place, Find(path));
    if (mkdirat(place.folder(), place.name.c_str(), 0777) == 0) return absl::OkStatus();
    const int error = errno;
    struct stat stat;
    const int follow = place.flags == 0 ? 0 : AT_SYMLINK_NOFOLLOW;
    if (error == EEXIST && fstatat(place.folder(), place.name.c_str(), &stat, follow) == 0 &&
        S_ISDIR(stat.st_mode)) {
      return absl::OkStatus();
    }
    errno = error;
    return Error("cannot make folder", path, place);
  }

  absl::Status RemoveFolder(const std::string& path) override {
    WEIR_ASSIGN_OR_RETURN(const Place place, Find(path));
    if (unlinkat(place.folder(), place.name.c_str(), AT_REMOVEDIR) < 0) {
      return ErrnoError("cannot remove folder", path);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    WEIR_ASSIGN_OR_RETURN(UniqueFd fd, OpenToRead("cannot list", folder));
    const std::unique_ptr<DIR, int (*)(DIR*)> dir(fdopendir(fd.get()), closedir);
    if (dir == nullptr) return ErrnoError("cannot list", folder);
    fd.Release();
    std::vector<std::string> names;
    while (true) {
      errno = 0;
      const dirent* entry = readdir(dir.get());
      if (entry == nullptr) break;
      names.push_back(entry->d_name);
      if (names.back() == "." || names.back() == "..") names.pop_back();
    }
    if (errno != 0) return ErrnoError("cannot list", folder);
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::Status SyncFolder(const std::string& folder) override {
    WEIR_ASSIGN_OR_RETURN(const UniqueFd fd, OpenToRead("cannot sync folder", folder));
    if (Retry([&] { return fsync(fd.get()); }) < 0) return ErrnoError("cannot sync folder", folder);
    return absl::OkStatus();
  }

 private:
  // Where a path leads, without its last step.
  struct Place {
    int folder() const { return handle.valid() ? handle.get() : AT_FDCWD; }
    // S_IFREG and so on, of a link itself; 0: the name is free.
    mode_t Kind() const {
      struct stat stat;
      const bool there = fstatat(folder(), name.c_str(), &stat, AT_SYMLINK_NOFOLLOW) == 0;
      return there ? stat.st_mode & S_IFMT : 0;
    }

    UniqueFd handle;
    std::string name;
    // O_NOFOLLOW where no link is followed.
    int flags = 0;
  };

  static std::string WithoutSlash(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
  }

  static absl::Status IsLink(absl::string_view what, absl::string_view path) {
    return absl::PermissionDeniedError(absl::StrCat(
        what, " ", path, ": there is a symbolic link on the way, and none is followed here; remove it"));
  }

  static absl::Status Error(absl::string_view what, const std::string& path, const Place& place) {
    const absl::Status error = ErrnoError(what, path);
    return place.flags != 0 && place.Kind() == S_IFLNK ? IsLink(what, path) : error;
  }

  static bool SameFile(const Place& a, const Place& b) {
    struct stat first, second;
    return fstatat(a.folder(), a.name.c_str(), &first, AT_SYMLINK_NOFOLLOW) == 0 &&
           fstatat(b.folder(), b.name.c_str(), &second, AT_SYMLINK_NOFOLLOW) == 0 &&
           first.st_dev == second.st_dev && first.st_ino == second.st_ino;
  }

  absl::StatusOr<Place> Find(const std::string& path) const {
    Place place;
    place.name = path;
    absl::string_view rest = path;
    if (root_.empty() || !absl::ConsumePrefix(&rest, root_)) return place;
    const std::vector<std::string> steps = absl::StrSplit(rest, '/', absl::SkipEmpty());
    if (!rest.empty() && rest[0] != '/') return place;  // "/runs/70" is not in "/runs/7"
    if (held_.valid()) {
      place.handle = UniqueFd(openat(held_.get(), ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
    } else if (!steps.empty()) {
      place.handle = UniqueFd(open(root_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    } else {
      return place;
    }
    if (!place.handle.valid()) return ErrnoError("cannot open", path);
    place.flags = O_NOFOLLOW;
    place.name = ".";
    for (size_t i = 0; i < steps.size(); ++i) {
      place.name = steps[i];
      if (i + 1 == steps.size()) break;
      UniqueFd next(
          openat(place.folder(), place.name.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
      if (!next.valid()) return Error("cannot open", path, place);
      place.handle = std::move(next);
    }
    return place;
  }

  absl::StatusOr<UniqueFd> OpenToRead(absl::string_view what, const std::string& folder) const {
    WEIR_ASSIGN_OR_RETURN(const Place place, Find(folder));
    UniqueFd fd(Retry([&] {
      return openat(place.folder(), place.name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | place.flags);
    }));
    if (!fd.valid()) return Error(what, folder, place);
    return fd;
  }

  // Empty: links are followed everywhere.
  const std::string root_;
  const UniqueFd held_ = UniqueFd();
};

// A staged file on a disk.
class TemporaryFile final : public StagedFile {
 public:
  TemporaryFile(FileSystem& fs, std::unique_ptr<WritableFile> file, std::string temporary, std::string path)
      : fs_(fs), file_(std::move(file)), temporary_(std::move(temporary)), path_(std::move(path)) {}

  absl::Status Append(absl::string_view data) override { return file_->Append(data); }
  absl::Status Sync() override { return file_->Sync(); }
  absl::Status Close() override { return file_->Close(); }

  absl::Status Publish(absl::Status written, Existing existing) override {
    if (written.ok()) {
      written =
          existing == Existing::kKeep ? fs_.RenameNew(temporary_, path_) : fs_.Rename(temporary_, path_);
    }
    if (!written.ok()) {
      fs_.Remove(temporary_).IgnoreError();
      return written;
    }
    return fs_.SyncFolder(ParentFolder(path_));
  }

 private:
  FileSystem& fs_;
  const std::unique_ptr<WritableFile> file_;
  const std::string temporary_, path_;
};

}  // namespace

FileSystem& FileSystem::Posix() {
  static PosixFileSystem* const instance = new PosixFileSystem;
  return *instance;
}

std::unique_ptr<FileSystem> FileSystem::Beneath(std::string folder) {
  return std::make_unique<PosixFileSystem>(std::move(folder));
}

absl::Status FileSystem::WriteFile(const std::string& path, absl::string_view data) {
  WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, Create(path));
  WEIR_RETURN_IF_ERROR(file->Append(data));
  WEIR_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

absl::StatusOr<std::unique_ptr<StagedFile>> FileSystem::Stage(const std::string& path,
                                                              const std::string& temporary) {
  WEIR_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, Create(temporary));
  return std::make_unique<TemporaryFile>(*this, std::move(file), temporary, path);
}

bool FileSystem::HoldsFolders(const std::string& path) const { return true; }

absl::Status FileSystem::Reserve(const std::string& path) {
  return absl::UnimplementedError(absl::StrCat("cannot reserve ", path, ": its folder can be held instead"));
}

absl::Status FileSystem::WriteNew(const std::string& path, const std::string& temporary,
                                  absl::string_view data, const std::function<absl::Status()>& confirm) {
  WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<StagedFile> file, Stage(path, temporary));
  absl::Status written = file->Append(data);
  if (written.ok()) written = file->Sync();
  if (written.ok()) written = file->Close();
  if (written.ok() && confirm) written = confirm();
  return file->Publish(std::move(written), Existing::kKeep);
}

absl::StatusOr<std::string> FileSystem::ReadFile(const std::string& path, uint64_t max_bytes) {
  WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, Open(path));
  if (file->size() > max_bytes) {
    return absl::DataLossError(
        absl::StrCat(path, " has ", file->size(), " bytes; at most ", max_bytes, " are allowed"));
  }
  std::string content(file->size(), '\0');
  WEIR_RETURN_IF_ERROR(file->Read(0, absl::MakeSpan(&content[0], content.size())));
  return content;
}

bool MayPass(const absl::Status& status) {
  // Unknown: EIO, for which Abseil has no code.
  return absl::IsResourceExhausted(status) || absl::IsUnknown(status);
}

std::string JoinPath(absl::string_view folder, absl::string_view name) {
  const bool slash = !folder.empty() && folder.back() == '/';
  return absl::StrCat(folder, slash ? "" : "/", name);
}

std::string ParentFolder(absl::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  if (slash == absl::string_view::npos) return ".";
  return std::string(path.substr(0, std::max<size_t>(slash, 1)));
}

}  // namespace weir
