#include "cli/installation/program_environment.h"

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/host.h"

namespace weir {
namespace {

// PyTorch, OpenBLAS, MKL and OpenMP itself begin with this number of threads.
constexpr char kThreadsVariable[] = "OMP_NUM_THREADS";
// Python buffers up to 8 KiB of the output into a pipe, which a program that is killed loses.
constexpr char kUnbufferedVariable[] = "PYTHONUNBUFFERED";

}  // namespace

void SetProgramEnvironment(int sharers, std::map<std::string, std::string>* environment) {
  // Each program would begin with a thread for each core, and these would spin while they wait for a core.
  const int cpus = UsableCpus();
  const bool shared = sharers > 1 || cpus < static_cast<int>(std::thread::hardware_concurrency());
  if (shared && std::getenv(kThreadsVariable) == nullptr) {
    (*environment)[kThreadsVariable] = absl::StrCat(std::max(1, cpus / sharers));
  }
  if (std::getenv(kUnbufferedVariable) == nullptr) (*environment)[kUnbufferedVariable] = "1";
}

}  // namespace weir
