#include "common/rpc/private_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/system/unique_fd.h"

namespace weir {
namespace {

// Returns why others may use the file; "": they may not.
std::string WhyNotPrivate(int fd) {
  struct stat file;
  if (fstat(fd, &file) != 0) return strerror(errno);
  if (!S_ISREG(file.st_mode)) return "it is no regular file";
  if (file.st_uid != geteuid() && file.st_uid != 0) {
    return absl::StrCat("it is user ", file.st_uid, "'s; it must be root's, or that of user ", geteuid(),
                        ", who runs this program");
  }
  const mode_t forbidden = file.st_uid == 0 ? S_IWGRP | S_IXGRP | S_IRWXO : S_IRWXG | S_IRWXO;
  if ((file.st_mode & forbidden) == 0) return "";
  return absl::StrFormat(
      "its mode is %04o, so that others may use it; make that 0600 (a Kubernetes Secret: defaultMode 0440 "
      "with fsGroup)",
      file.st_mode & 07777);
}

}  // namespace

absl::StatusOr<std::string> ReadPrivateFile(absl::string_view what, const std::string& path,
                                            size_t most_bytes) {
  const auto refuse = [&](absl::string_view why) {
    return absl::FailedPreconditionError(absl::StrCat(what, " ", path, ": ", why));
  };
  // Non-blocking: a pipe must be refused, not waited for.
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd.valid()) return refuse(absl::StrCat("it cannot be opened: ", strerror(errno)));
  if (const std::string why = WhyNotPrivate(fd.get()); !why.empty()) return refuse(why);
  std::string bytes(most_bytes + 1, '\0');
  size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t got = read(fd.get(), &bytes[size], bytes.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return refuse(absl::StrCat("it cannot be read: ", strerror(errno)));
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  bytes.resize(size);
  return bytes;
}

}  // namespace weir
