#include "tests/chaos/small_disk.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/system/unique_fd.h"

namespace weir {
namespace {

constexpr char kOptions[] = "size=8m";

std::string Ballast(const std::string& folder) { return folder + "/ballast"; }

bool WriteFile(const char* path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  return file.good();
}

}  // namespace

absl::Status SmallDisk::EnterNamespace() {
  const uid_t user = geteuid();
  const gid_t group = getegid();
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return absl::ErrnoToStatus(errno, "unshare");
  if (!WriteFile("/proc/self/setgroups", "deny") ||
      !WriteFile("/proc/self/uid_map", absl::StrCat(user, " ", user, " 1")) ||
      !WriteFile("/proc/self/gid_map", absl::StrCat(group, " ", group, " 1"))) {
    return absl::PermissionDeniedError("a user namespace's ids cannot be mapped");
  }
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return absl::ErrnoToStatus(errno, "mount --make-rprivate /");
  }
  return absl::OkStatus();
}

absl::Status SmallDisk::Mount(const std::string& folder) {
  if (mount("chaos", folder.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, kOptions) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("a tmpfs on ", folder));
}

void SmallDisk::Unmount(const std::string& folder) { umount2(folder.c_str(), MNT_DETACH); }

absl::Status SmallDisk::Fill(const std::string& folder, uint64_t spare) {
  const UniqueFd file(open(Ballast(folder).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  const std::vector<char> block(4096);
  while (file.get() >= 0 && write(file.get(), block.data(), block.size()) > 0) {
  }
  if (errno != ENOSPC) return absl::ErrnoToStatus(errno, Ballast(folder));
  const off_t size = lseek(file.get(), 0, SEEK_END);
  if (ftruncate(file.get(), size - static_cast<off_t>(spare)) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, Ballast(folder));
}

void SmallDisk::Free(const std::string& folder) { unlink(Ballast(folder).c_str()); }

}  // namespace weir
