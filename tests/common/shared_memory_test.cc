#include "common/system/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "tests/common/open_descriptors.h"

namespace weir {
namespace {

constexpr uint64_t kBytes = 3 << 20;

UniqueFd Duplicate(int fd) { return UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

UniqueFd Memfd(uint64_t bytes, int seals, bool filled = true) {
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(fd.valid());
  REQUIRE(ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  if (filled && bytes > 0) REQUIRE(fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) == 0);
  REQUIRE(fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
  return fd;
}

TEST_CASE("what one mapping writes the other reads") {
  auto made = SharedSegment::Create(kBytes - 5);
  REQUIRE(made.ok());
  SharedSegment& segment = **made;
  CHECK(segment.size() == kBytes);
  auto opened = SharedSegment::OpenReadOnly(Duplicate(segment.fd()), kBytes);
  REQUIRE(opened.ok());
  CHECK(segment.data() != (*opened)->data());
  // Otherwise neither mapping could have huge pages.
  CHECK(reinterpret_cast<uintptr_t>(segment.data()) % (2 << 20) == 0);
  CHECK(reinterpret_cast<uintptr_t>((*opened)->data()) % (2 << 20) == 0);
  CHECK((*opened)->data()[kBytes - 1] == 0);
  memset(segment.data(), 0x5a, kBytes);
  CHECK((*opened)->data()[0] == 0x5a);
  CHECK((*opened)->data()[kBytes - 1] == 0x5a);
  // The mapping outlives the segment's maker.
  made->reset();
  CHECK((*opened)->data()[kBytes / 2] == 0x5a);
}

TEST_CASE("ranges") {
  auto made = SharedSegment::Create(4096);
  REQUIRE(made.ok());
  const SharedSegment& segment = **made;
  CHECK(segment.At(0, 4096).value() == segment.data());
  CHECK(segment.At(4095, 1).value() == segment.data() + 4095);
  CHECK(segment.At(4096, 0).ok());
  CHECK(absl::IsOutOfRange(segment.At(0, 4097).status()));
  CHECK(absl::IsOutOfRange(segment.At(4096, 1).status()));
  CHECK(absl::IsOutOfRange(segment.At(5000, 0).status()));
  CHECK(absl::IsOutOfRange(segment.At(1, UINT64_MAX).status()));
  CHECK(absl::IsOutOfRange(segment.At(UINT64_MAX, 1).status()));
}

TEST_CASE("nobody but the maker's mapping can write a segment, and nobody can change its size") {
  auto made = SharedSegment::Create(kBytes);
  REQUIRE(made.ok());
  memset((*made)->data(), 1, kBytes);
  const UniqueFd passed = Duplicate((*made)->fd());
  // Also opened anew, as another process of this user could.
  const UniqueFd reopened(open(absl::StrCat("/proc/self/fd/", passed.get()).c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(reopened.valid());
  for (int fd : {passed.get(), reopened.get()}) {
    const char bytes[] = "overwritten";
    CHECK(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    CHECK(pwrite(fd, bytes, sizeof(bytes), 0) == -1);
    CHECK(ftruncate(fd, 0) == -1);
    CHECK(ftruncate(fd, 2 * kBytes) == -1);
    CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == -1);
    CHECK(fallocate(fd, 0, 0, 2 * kBytes) == -1);
    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == -1);
    void* data = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd, 0);
    REQUIRE(data != MAP_FAILED);
    CHECK(mprotect(data, kBytes, PROT_READ | PROT_WRITE) == -1);
    CHECK(madvise(data, kBytes, MADV_REMOVE) == -1);
    munmap(data, kBytes);
  }
  // The maker cannot either.
  CHECK(madvise((*made)->data(), kBytes, MADV_REMOVE) == -1);
  CHECK((*made)->data()[0] == 1);
  CHECK((*made)->data()[kBytes - 1] == 1);
}

TEST_CASE("who writes to weights dies, and the weights stay") {
  auto made = SharedSegment::Create(4096);
  REQUIRE(made.ok());
  (*made)->data()[0] = 42;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    // Default handling: no report of a sanitizer or of Catch2.
    signal(SIGSEGV, SIG_DFL);
    auto opened = SharedSegment::OpenReadOnly(Duplicate((*made)->fd()), 4096);
    if (!opened.ok()) _exit(1);
    const_cast<char*>((*opened)->data())[0] = 13;
    _exit(0);
  }
  int exit = 0;
  REQUIRE(waitpid(child, &exit, 0) == child);
  CHECK(WIFSIGNALED(exit));
  CHECK(WTERMSIG(exit) == SIGSEGV);
  CHECK((*made)->data()[0] == 42);
}

TEST_CASE("a peer's segment is looked at before it is mapped") {
  constexpr int kAll = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  const auto open = [](UniqueFd fd, uint64_t bytes) {
    return SharedSegment::OpenReadOnly(std::move(fd), bytes).status();
  };
  const int before = OpenDescriptors();
  CHECK(open(Memfd(kBytes, kAll), kBytes).ok());
  // Without one of the seals a peer could kill this process with SIGBUS, or change values after the check.
  for (int missing : {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE, F_SEAL_SEAL}) {
    const absl::Status status = open(Memfd(kBytes, kAll & ~missing), kBytes);
    CHECK(absl::IsFailedPrecondition(status));
    CHECK(status.message().find("seals") != std::string::npos);
  }
  CHECK(absl::IsFailedPrecondition(open(Memfd(kBytes, kAll), kBytes - 4096)));
  CHECK(absl::IsFailedPrecondition(open(Memfd(kBytes, kAll), kBytes + 4096)));
  CHECK(absl::IsFailedPrecondition(open(Memfd(kBytes, kAll), 0)));
  CHECK(absl::IsFailedPrecondition(open(Memfd(0, kAll), 0)));
  // Reading it would allocate memory in this process.
  const absl::Status sparse = open(Memfd(kBytes, kAll, /*filled=*/false), kBytes);
  CHECK(absl::IsFailedPrecondition(sparse));
  CHECK(sparse.message().find("memory for only 0") != std::string::npos);
  CHECK(absl::IsFailedPrecondition(open(UniqueFd(), kBytes)));
  CHECK(absl::IsFailedPrecondition(open(UniqueFd(::open("/dev/zero", O_RDWR)), kBytes)));
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  CHECK(absl::IsFailedPrecondition(open(UniqueFd(ends[0]), kBytes)));
  close(ends[1]);
  CHECK(OpenDescriptors() == before);
}

TEST_CASE("a segment that cannot be is refused, and nothing leaks") {
  const int before = OpenDescriptors();
  CHECK(absl::IsInvalidArgument(SharedSegment::Create(0).status()));
  CHECK(absl::IsInvalidArgument(SharedSegment::Create(UINT64_MAX).status()));
  for (int i = 0; i < 100; ++i) REQUIRE(SharedSegment::Create(4096).ok());
  CHECK(OpenDescriptors() == before);
}

}  // namespace
}  // namespace weir
