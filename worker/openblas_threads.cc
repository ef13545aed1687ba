// OpenBLAS makes its threads while it is loaded, before main. Where the system gives it none, it sends SIGINT
// to its own process, which then looks as if Ctrl-C had ended it. Linked into the program alone: only a
// program has functions that run before its libraries are loaded.
#include "worker/openblas_threads.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "common/program/exit_codes.h"

namespace weir {

#if defined(WEIR_ASAN) || defined(WEIR_TSAN)

void ExitWithoutOpenBlas(int code) { std::exit(code); }

#else

namespace {

void OnInterrupt(int signal, siginfo_t* info, void*) {
  // Ctrl-C comes from elsewhere.
  if (info->si_code != SI_TKILL || info->si_pid != getpid()) {
    ::signal(signal, SIG_DFL);
    raise(signal);
    return;
  }
  constexpr char kText[] =
      "error: the system gives no thread to OpenBLAS: a limit of threads (pids.max of the control group, "
      "RLIMIT_NPROC) or of memory is reached; raise it, or set OPENBLAS_NUM_THREADS=1\n";
  if (write(STDERR_FILENO, kText, strlen(kText)) < 0) _exit(kExitInternal);
  _exit(kExitInternal);
}

void BeforeLibraries(int, char**, char**) {
  struct sigaction now;
  if (sigaction(SIGINT, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) return;
  struct sigaction action = {};
  action.sa_sigaction = OnInterrupt;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGINT, &action, nullptr);
}

__attribute__((section(".preinit_array"), used)) void (*const before_libraries)(int, char**,
                                                                                char**) = BeforeLibraries;

}  // namespace

void ExitWithoutOpenBlas(int code) {
  std::cout.flush();
  std::fflush(nullptr);
  _exit(code);
}

#endif

}  // namespace weir
