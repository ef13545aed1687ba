#include "common/cuda/cuda_device.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#ifdef WEIR_CUDA
#include <cuda_runtime.h>

#include "common/cuda/cuda_libraries.h"
#endif

namespace weir::cuda {

std::string VersionString(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

#ifdef WEIR_CUDA

namespace {

// The oldest device that the build has code for (//bazel:cuda.bzl); newer ones run it or compile its PTX.
constexpr int kOldestMajor = 8, kOldestMinor = 0;

absl::Status NoDevices(int driver_version) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return absl::FailedPreconditionError(absl::StrCat(
      "the NVIDIA driver (CUDA ", VersionString(driver_version), ") shows no device",
      visible == nullptr ? "; see whether nvidia-smi lists one and whether this container was given it"
                         : absl::StrCat("; CUDA_VISIBLE_DEVICES is '", visible, "', which may hide them")));
}

}  // namespace

int DriverVersion() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

int RuntimeVersion() {
  int version = 0;
  return cudaRuntimeGetVersion(&version) == cudaSuccess ? version : 0;
}

absl::StatusOr<Installation> Probe() {
  Installation found;
  found.runtime_version = RuntimeVersion();
  found.driver_version = DriverVersion();
  if (found.driver_version == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("no NVIDIA driver was found (libcuda.so.1 cannot be loaded); install one that supports "
                     "CUDA ",
                     VersionString(found.runtime_version), " or newer"));
  }
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) cudaGetLastError();  // reported here; later calls start afresh
  if (error == cudaErrorInsufficientDriver) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the NVIDIA driver supports CUDA ", VersionString(found.driver_version),
        " at most, but this build needs ", VersionString(found.runtime_version), "; update the driver"));
  }
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    return NoDevices(found.driver_version);
  }
  if (error != cudaSuccess) {
    return absl::FailedPreconditionError(ToStatus(error, "the NVIDIA driver does not start").message());
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    WEIR_RETURN_IF_ERROR(
        ToStatus(cudaGetDeviceProperties(&properties, i), absl::StrCat("properties of cuda:", i)));
    Device device;
    device.index = i;
    device.name = properties.name;
    device.major = properties.major;
    device.minor = properties.minor;
    device.memory_bytes = properties.totalGlobalMem;
    device.multiprocessors = properties.multiProcessorCount;
    if (device.major * 10 + device.minor < kOldestMajor * 10 + kOldestMinor) {
      device.usable = absl::FailedPreconditionError(
          absl::StrCat("cuda:", i, " (", device.name, ") has compute capability ", device.major, ".",
                       device.minor, "; this build needs ", kOldestMajor, ".", kOldestMinor, " or newer"));
    }
    found.devices.push_back(device);
  }
  return found;
}

absl::StatusOr<std::string> FindBlas() {
  WEIR_ASSIGN_OR_RETURN(const BlasLibrary* library, LoadBlasLibrary());
  return library->version;
}

#else  // a build without the toolkit

namespace {

absl::Status Unavailable() {
  return absl::FailedPreconditionError(
      "this build has no CUDA: the toolkit (nvcc) was not found when it was made; install it, set CUDA_HOME "
      "and build again");
}

}  // namespace

int DriverVersion() { return 0; }
int RuntimeVersion() { return 0; }
absl::StatusOr<Installation> Probe() { return Unavailable(); }
absl::StatusOr<std::string> FindBlas() { return Unavailable(); }

#endif

absl::StatusOr<std::vector<int>> UsableDevices() {
  WEIR_ASSIGN_OR_RETURN(const Installation found, Probe());
  std::vector<int> usable;
  for (const Device& device : found.devices) {
    if (device.usable.ok()) usable.push_back(device.index);
  }
  if (usable.empty()) return found.devices.front().usable;
  WEIR_RETURN_IF_ERROR(FindBlas().status());
  return usable;
}

}  // namespace weir::cuda
