#include "tests/common/optimizer/racing_writer.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdlib>

namespace weir {
namespace {

constexpr size_t kBytes = RacingWriter::kElements * sizeof(float);
constexpr greg_t kTrapFlag = 0x100;  // in EFLAGS: a trap after the next instruction

// The state of the signal handlers.
struct Race {
  char* values = nullptr;             // the reader's view
  volatile float* writers = nullptr;  // the same memory, the writer's view
  size_t at = 0;
  float value = 0;
  int write_after = 0;
  int reads = 0;
  struct sigaction old_segv, old_trap;
} race;

void MayWrite() {
  if (race.reads == race.write_after) race.writers[race.at] = race.value;
}

void OnFault(int, siginfo_t* info, void* context) {
  greg_t& flags = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL];
  const char* const address = static_cast<const char*>(info->si_addr);
  // A fault of an instruction that is already allowed to read is a write. It repeats, and ends the process.
  if (address < race.values || address >= race.values + kBytes || (flags & kTrapFlag) != 0) {
    sigaction(SIGSEGV, &race.old_segv, nullptr);
    return;
  }
  mprotect(race.values, kBytes, PROT_READ);
  flags |= kTrapFlag;
}

void AfterRead(int, siginfo_t*, void* context) {
  ++race.reads;
  MayWrite();
  mprotect(race.values, kBytes, PROT_NONE);
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~kTrapFlag;
}

}  // namespace

RacingWriter::RacingWriter() {
  const int fd = memfd_create("racing writer", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, kBytes) != 0) std::abort();
  void* const views[2] = {mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd, 0),
                          mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)};
  if (views[0] == MAP_FAILED || views[1] == MAP_FAILED) std::abort();
  close(fd);
  race.values = static_cast<char*>(views[0]);
  race.writers = static_cast<volatile float*>(views[1]);
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = OnFault;
  if (sigaction(SIGSEGV, &action, &race.old_segv) != 0) std::abort();
  action.sa_sigaction = AfterRead;
  if (sigaction(SIGTRAP, &action, &race.old_trap) != 0) std::abort();
}

RacingWriter::~RacingWriter() {
  sigaction(SIGSEGV, &race.old_segv, nullptr);
  sigaction(SIGTRAP, &race.old_trap, nullptr);
  munmap(race.values, kBytes);
  munmap(const_cast<float*>(race.writers), kBytes);
}

const float* RacingWriter::values() const { return reinterpret_cast<const float*>(race.values); }

void RacingWriter::Write(size_t at, float value) { race.writers[at] = value; }

int RacingWriter::Run(size_t at, float value, int reads, const std::function<void()>& read) {
  race.at = at;
  race.value = value;
  race.write_after = reads;
  race.reads = 0;
  MayWrite();
  mprotect(race.values, kBytes, PROT_NONE);
  read();
  mprotect(race.values, kBytes, PROT_READ);
  return race.reads;
}

}  // namespace weir
