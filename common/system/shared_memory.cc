#include "common/system/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace weir {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
// Added after the maker's own mapping, which stays writable.
constexpr int kWriteSeals = F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
constexpr uint64_t kStatBlock = 512;  // the unit of st_blocks

constexpr uint64_t kHugePage = 2 << 20;
#ifndef MADV_COLLAPSE  // since Linux 6.1
#define MADV_COLLAPSE 25
#endif

uint64_t PageSize() { return static_cast<uint64_t>(sysconf(_SC_PAGESIZE)); }
uint64_t RoundUp(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

// Maps the file at a huge-page boundary, where the system need not put it by itself. MAP_FAILED: see errno.
void* MapWhole(int fd, uint64_t bytes, int protection) {
  const uint64_t pages = RoundUp(bytes, PageSize()), room = pages + kHugePage;
  void* const reserved = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  char* const begin = static_cast<char*>(reserved);
  const uint64_t at = reinterpret_cast<uintptr_t>(begin), before = RoundUp(at, kHugePage) - at;
  void* const data = mmap(begin + before, bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    munmap(reserved, room);
    errno = error;
    return MAP_FAILED;
  }
  if (before > 0) munmap(begin, before);
  munmap(begin + before + pages, kHugePage - before);
  return data;
}

// 0, or an errno.
int Advise(char* data, uint64_t bytes, int advice) { return madvise(data, bytes, advice) == 0 ? 0 : errno; }

// Asks for huge pages. By default Linux gives files in memory none (shmem_enabled), but on request it
// collapses a stretch that has a page into one huge page. What it does not collapse stays as it is.
void Collapse(char* data, uint64_t bytes) {
  Advise(data, bytes, MADV_HUGEPAGE);
  for (uint64_t at = 0; at + kHugePage <= bytes; at += kHugePage) {
    if (Advise(data + at, 1, MADV_POPULATE_WRITE) != 0) return;
  }
  Advise(data, bytes, MADV_COLLAPSE);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedSegment>> SharedSegment::Create(uint64_t bytes) {
  if (bytes == 0 || bytes > uint64_t{1} << 46) {
    return absl::InvalidArgumentError(absl::StrCat("a segment of ", bytes, " bytes; 1 to 2^46 can be"));
  }
  const uint64_t size = RoundUp(bytes, PageSize());
  const auto failed = [&](const char* what) {
    const int error = errno;
    const std::string message =
        absl::StrCat("cannot ", what, " shared memory of ", size, " bytes: ", strerror(error));
    if (error == ENOMEM || error == ENOSPC || error == EFAULT) return absl::ResourceExhaustedError(message);
    return absl::ErrnoToStatus(error, message);
  };
  UniqueFd fd(memfd_create("weir", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return failed("make");
  if (ftruncate(fd.get(), static_cast<off_t>(size)) != 0) return failed("size");
  if (fcntl(fd.get(), F_ADD_SEALS, kSizeSeals) != 0) return failed("seal");
  void* data = MapWhole(fd.get(), size, PROT_READ | PROT_WRITE);
  if (data == MAP_FAILED) return failed("map");
  std::unique_ptr<SharedSegment> segment(new SharedSegment(std::move(fd), static_cast<char*>(data), size));
  if (fcntl(segment->fd(), F_ADD_SEALS, kWriteSeals) != 0) {
    if (errno == EINVAL)
      return absl::UnimplementedError("this kernel (before 5.1) has no F_SEAL_FUTURE_WRITE");
    return failed("seal");
  }
  Collapse(segment->data(), size);
  const int filled = Advise(segment->data(), size, MADV_POPULATE_WRITE);
  if (filled == EINVAL) {  // before Linux 5.14
    memset(segment->data(), 0, size);
  } else if (filled != 0) {
    errno = filled;
    return failed("fill");
  }
  return segment;
}

absl::StatusOr<std::unique_ptr<const SharedSegment>> SharedSegment::OpenReadOnly(UniqueFd fd,
                                                                                 uint64_t bytes) {
  if (!fd.valid()) return absl::FailedPreconditionError("no segment came with the message");
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0) return absl::FailedPreconditionError("not a segment of shared memory");
  constexpr int kAll = kSizeSeals | kWriteSeals;
  if ((seals & kAll) != kAll) {
    return absl::FailedPreconditionError(
        absl::StrCat("a segment with seals ", absl::Hex(seals), " instead of ", absl::Hex(kAll)));
  }
  // The seals hold from here on, so what is seen now does not change.
  struct stat file;
  if (fstat(fd.get(), &file) != 0) return absl::ErrnoToStatus(errno, "cannot look at a segment");
  if (bytes == 0 || static_cast<uint64_t>(file.st_size) != bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("a segment of ", file.st_size, " bytes instead of ", bytes));
  }
  // Otherwise reading the segment would take memory, from this process.
  if (static_cast<uint64_t>(file.st_blocks) * kStatBlock < bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("a segment of ", bytes, " bytes with memory for only ", file.st_blocks * kStatBlock));
  }
  void* data = MapWhole(fd.get(), bytes, PROT_READ);
  if (data == MAP_FAILED) return absl::ErrnoToStatus(errno, "cannot map a segment");
  std::unique_ptr<const SharedSegment> segment(
      new SharedSegment(UniqueFd(), static_cast<char*>(data), bytes));
  // Maps all pages at once; if the system cannot, they are mapped one by one.
  Advise(static_cast<char*>(data), bytes, MADV_HUGEPAGE);
  Advise(static_cast<char*>(data), bytes, MADV_POPULATE_READ);
  return segment;
}

SharedSegment::~SharedSegment() { munmap(data_, size_); }

absl::StatusOr<const char*> SharedSegment::At(uint64_t offset, uint64_t bytes) const {
  if (offset > size_ || bytes > size_ - offset) {
    return absl::OutOfRangeError(
        absl::StrCat("bytes ", offset, " + ", bytes, " of a segment that has ", size_));
  }
  return data_ + offset;
}

}  // namespace weir
