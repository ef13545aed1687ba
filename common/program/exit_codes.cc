#include "common/program/exit_codes.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <system_error>

#include "common/protocol/job_failure.h"

namespace weir {
namespace {

// Allocates nothing.
void Say(const char* text) {
  if (write(STDERR_FILENO, text, strlen(text)) < 0) return;
}

[[noreturn]] void EndWithoutMemory() {
  char text[400];
  rlimit limit{};
  const bool limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  if (limited) {
    std::snprintf(text, sizeof text,
                  "error: out of memory: RLIMIT_AS (ulimit -v) gives this process %llu MiB of address space; "
                  "raise it\n",
                  static_cast<unsigned long long>(limit.rlim_cur >> 20));
  } else {
    std::snprintf(text, sizeof text,
                  "error: out of memory: the machine, or the container, gives this process no more; "
                  "docs/memory.md says how much a task needs\n");
  }
  Say(text);
  _exit(kExitInternal);
}

// C libraries abort where they find no memory. Only with RLIMIT_AS can it be told from a fault of the
// program: then little address space is left.
void OnAbort(int) {
  constexpr size_t kLittle = 128 << 20;
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  void* const left = mmap(nullptr, kLittle, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (left == MAP_FAILED) EndWithoutMemory();
  munmap(left, kLittle);
}

[[noreturn]] void OnUncaught() {
  const std::exception_ptr thrown = std::current_exception();
  try {
    if (thrown != nullptr) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    EndWithoutMemory();
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again) {
      Say("error: the system gives a library no thread: a limit of threads (pids.max of the control group, "
          "RLIMIT_NPROC) or of memory is reached; raise it\n");
      _exit(kExitInternal);
    }
    Say(error.what());
  } catch (const std::exception& error) {
    Say("an exception that nobody takes: ");
    Say(error.what());
    Say("\n");
  } catch (...) {
    Say("an exception that nobody takes\n");
  }
  std::abort();
}

}  // namespace

ExitCode ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return kExitOk;
  static_assert(v1::FailureKind_MAX == v1::FAILURE_INTERNAL, "a new kind of failure needs its case here");
  switch (KindOf(status)) {
    case v1::FAILURE_LOST_PEER:
    case v1::FAILURE_FENCED:
    case v1::FAILURE_DRAINED:
      return kExitPeerLost;
    case v1::FAILURE_CONFIG:
      return kExitConfig;
    case v1::FAILURE_RESOURCE:
      return kExitStorage;
    case v1::FAILURE_DIVERGED:
    case v1::FAILURE_INTERNAL:
    case v1::FAILURE_UNSPECIFIED:
    default:  // a kind of a newer version of the protocol
      return kExitInternal;
  }
}

void EndOnExhaustion() {
  std::set_terminate(OnUncaught);
  struct sigaction action = {};
  action.sa_handler = OnAbort;  // abort() continues when it returns
  sigaction(SIGABRT, &action, nullptr);
}

}  // namespace weir
