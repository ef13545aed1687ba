#include "common/shared_memory/doorbell.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <new>
#include <utility>

namespace weir {
namespace {

constexpr size_t kPageBytes = DoorbellPage::kBells * sizeof(Doorbell);
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

static_assert(sizeof(Doorbell) == 64);
static_assert(std::atomic<uint32_t>::is_always_lock_free &&
              sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

long Futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, timeout, nullptr, 0);
}

absl::StatusOr<Doorbell*> Map(int fd) {
  void* const page = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) return absl::ErrnoToStatus(errno, "cannot map a page of bells");
  return static_cast<Doorbell*>(page);
}

}  // namespace

uint32_t Doorbell::Arm() {
  const uint32_t rung = rung_.load(std::memory_order_relaxed);
  // In one order with the fence of Ring(): either this thread sees the work, or the ringer sees that it
  // sleeps.
  asleep_.store(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return rung;
}

void Doorbell::Sleep(uint32_t armed, Steady::time_point until) {
  const Steady::time_point now = Steady::now();
  if (until <= now) return;
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(until - now).count();
  const timespec timeout{static_cast<time_t>(nanoseconds / 1'000'000'000),
                         static_cast<long>(nanoseconds % 1'000'000'000)};
  Futex(&rung_, FUTEX_WAIT, armed, &timeout);
}

void Doorbell::Ring() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // One ringer wakes the thread. It takes the mark first and counts then: counting first, it could take the
  // mark of a later Arm(), which has seen the count already, and the thread would sleep with nobody to wake
  // it.
  if (asleep_.load(std::memory_order_seq_cst) == 0 || asleep_.exchange(0, std::memory_order_seq_cst) == 0)
    return;
  rung_.fetch_add(1, std::memory_order_seq_cst);
  Futex(&rung_, FUTEX_WAKE, 1, nullptr);
}

absl::StatusOr<std::shared_ptr<DoorbellPage>> DoorbellPage::Create() {
  UniqueFd fd(memfd_create("weir-bells", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "cannot make a page of bells");
  if (ftruncate(fd.get(), kPageBytes) != 0 || fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return absl::ErrnoToStatus(errno, "cannot size a page of bells");
  }
  const absl::StatusOr<Doorbell*> bells = Map(fd.get());
  if (!bells.ok()) return bells.status();
  for (uint32_t i = 0; i < kBells; ++i) new (*bells + i) Doorbell;
  return std::shared_ptr<DoorbellPage>(new DoorbellPage(std::move(fd), *bells));
}

absl::StatusOr<std::shared_ptr<DoorbellPage>> DoorbellPage::Open(UniqueFd fd) {
  if (!fd.valid()) return absl::FailedPreconditionError("no page of bells came with the message");
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  struct stat file;
  if (seals < 0 || (seals & kSeals) != kSeals || fstat(fd.get(), &file) != 0 ||
      file.st_size != static_cast<off_t>(kPageBytes)) {
    return absl::FailedPreconditionError("not a page of bells");
  }
  const absl::StatusOr<Doorbell*> bells = Map(fd.get());
  if (!bells.ok()) return bells.status();
  return std::shared_ptr<DoorbellPage>(new DoorbellPage(UniqueFd(), *bells));
}

DoorbellPage::~DoorbellPage() { munmap(bells_, kPageBytes); }

}  // namespace weir
