#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weir::cuda {

// The host's CUDA devices. Looking takes no memory on a device and sets nothing up there. Thread-safe.

// "13.0"
std::string VersionString(int version);

struct Device {
  int index = 0;  // N of "cuda:N", in the driver's order, CUDA_VISIBLE_DEVICES applied
  std::string name;
  int major = 0, minor = 0;  // compute capability
  uint64_t memory_bytes = 0;
  int multiprocessors = 0;
  absl::Status usable;  // or why this build has no code for it
};

struct Installation {
  int driver_version = 0;   // the newest CUDA that the driver knows, as 1000 * major + 10 * minor
  int runtime_version = 0;  // what this build was made with
  std::vector<Device> devices;
};

// The versions in Installation, also if Probe() fails; 0: none.
int DriverVersion();
int RuntimeVersion();

// FailedPrecondition: there is no driver, the driver is too old, there is no device, or the build has no
// CUDA; the message says which and what to do.
absl::StatusOr<Installation> Probe();

// Loads cuBLAS, which is looked for only when it is needed, and returns its version ("13.1.0"). The error
// names the places that were tried.
absl::StatusOr<std::string> FindBlas();

// The indexes of the devices that this build computes on; at least one. FailedPrecondition: why there is
// none.
absl::StatusOr<std::vector<int>> UsableDevices();

}  // namespace weir::cuda
