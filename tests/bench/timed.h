#pragma once

#include <errno.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Functions for programs that measure one process.
namespace weir::bench {

// Ends the program with 1 if the measured work has failed.
inline void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, std::string(status.message()).c_str());
  std::exit(1);
}

template <typename T>
T Require(absl::StatusOr<T> value) {
  Require(value.status());
  return *std::move(value);
}

// Returns the seconds that the work takes by a clock, CLOCK_THREAD_CPUTIME_ID for example.
inline double Seconds(clockid_t clock, absl::FunctionRef<void()> work) {
  const auto now = [clock] {
    timespec t;
    clock_gettime(clock, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  };
  const double begun = now();
  work();
  return now() - begun;
}

}  // namespace weir::bench
