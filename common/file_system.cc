#include "common/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace weir {
namespace {

absl::Status ErrnoError(absl::string_view what, absl::string_view path) {
  return absl::ErrnoToStatus(errno, absl::StrCat(what, " ", path));
}

// Again while a signal comes between.
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
    while (!data.empty()) {
      const ssize_t n = Retry([&] { return write(fd_.get(), data.data(), data.size()); });
      if (n < 0) return ErrnoError("cannot write", path_);
      data.remove_prefix(static_cast<size_t>(n));
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    if (Retry([&] { return fsync(fd_.get()); }) < 0) return ErrnoError("cannot sync", path_);
    return absl::OkStatus();
  }

  absl::Status Close() override {
    // On Linux the descriptor is gone even then.
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

 private:
  const std::string path_;
  const UniqueFd fd_;
  const uint64_t size_;
};

class PosixFileSystem final : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    UniqueFd fd(Retry([&] { return open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666); }));
    if (!fd.valid()) return ErrnoError("cannot create", path);
    return std::make_unique<PosixWritableFile>(path, std::move(fd));
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    // Without O_NONBLOCK a named pipe would hold us until somebody writes.
    UniqueFd fd(Retry([&] { return open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); }));
    if (!fd.valid()) return ErrnoError("cannot open", path);
    struct stat stat;
    if (fstat(fd.get(), &stat) < 0) return ErrnoError("cannot open", path);
    if (!S_ISREG(stat.st_mode)) {
      return absl::FailedPreconditionError(absl::StrCat("cannot open ", path, ": it is not a file"));
    }
    return std::make_unique<PosixReadableFile>(path, std::move(fd), static_cast<uint64_t>(stat.st_size));
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) < 0) {
      return ErrnoError(absl::StrCat("cannot rename ", from, " to"), to);
    }
    return absl::OkStatus();
  }

  absl::Status RenameNew(const std::string& from, const std::string& to) override {
    if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) {
      return absl::OkStatus();
    }
    // Not every file system can (NFS); a second name can be had on most.
    if ((errno == EINVAL || errno == ENOSYS) && link(from.c_str(), to.c_str()) == 0) return Remove(from);
    return ErrnoError(absl::StrCat("cannot rename ", from, " to"), to);
  }

  absl::Status Remove(const std::string& path) override {
    if (unlink(path.c_str()) < 0) return ErrnoError("cannot remove", path);
    return absl::OkStatus();
  }

  absl::Status MakeFolder(const std::string& path) override {
    if (mkdir(path.c_str(), 0777) == 0) return absl::OkStatus();
    const int error = errno;
    struct stat stat;
    if (error == EEXIST && ::stat(path.c_str(), &stat) == 0 && S_ISDIR(stat.st_mode)) return absl::OkStatus();
    errno = error;
    return ErrnoError("cannot make folder", path);
  }

  absl::Status RemoveFolder(const std::string& path) override {
    if (rmdir(path.c_str()) < 0) return ErrnoError("cannot remove folder", path);
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(folder.c_str()), closedir);
    if (dir == nullptr) return ErrnoError("cannot list", folder);
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
    const UniqueFd fd(Retry([&] { return open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
    if (!fd.valid() || Retry([&] { return fsync(fd.get()); }) < 0) {
      return ErrnoError("cannot sync folder", folder);
    }
    return absl::OkStatus();
  }
};

}  // namespace

FileSystem& FileSystem::Posix() {
  static PosixFileSystem* const instance = new PosixFileSystem;
  return *instance;
}

absl::Status FileSystem::WriteFile(const std::string& path, absl::string_view data) {
  WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, Create(path));
  WEIR_RETURN_IF_ERROR(file->Append(data));
  WEIR_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

absl::Status FileSystem::Publish(absl::Status written, const std::string& temporary, const std::string& path,
                                 Existing existing) {
  if (written.ok()) {
    written = existing == Existing::kKeep ? RenameNew(temporary, path) : Rename(temporary, path);
  }
  if (!written.ok()) {
    Remove(temporary).IgnoreError();
    return written;
  }
  return SyncFolder(ParentFolder(path));
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
