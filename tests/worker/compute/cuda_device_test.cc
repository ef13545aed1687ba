// Compiled like the emulated code: weir::cuda is the emulation's.

#include "common/cuda/cuda_device.h"

#include <cstdlib>

#include "catch2/catch.hpp"
#include "tests/worker/compute/cuda_emulation/emulation.h"
#include "worker/compute/compute_backend.h"

namespace weir {
namespace {

using cuda_emulation::Machine;
using cuda_emulation::SetMachine;

absl::Status MakeOn(const Machine& machine, int device = 0) {
  SetMachine(machine);
  return cuda::MakeBackend(device, Precision::kFloat32, 0).status();
}

TEST_CASE("A host's devices are listed") {
  Machine machine;
  machine.devices = 2;
  SetMachine(machine);
  const auto found = cuda::Probe();
  REQUIRE(found.ok());
  CHECK(cuda::VersionString(found->driver_version) == "13.0");
  CHECK(found->runtime_version == 13000);
  REQUIRE(found->devices.size() == 2);
  const cuda::Device& device = found->devices[1];
  CHECK(device.index == 1);
  CHECK(device.name == "Emulated GPU");
  CHECK(device.major == 9);
  CHECK(device.minor == 0);
  CHECK(device.memory_bytes == size_t{4} << 30);
  CHECK(device.usable.ok());
  CHECK(*cuda::FindBlas() == "13.1.0");
  CHECK(cuda_emulation::LiveObjects() == 0);
}

TEST_CASE("The devices to use are those that the build has code for, once cuBLAS is there") {
  Machine machine;
  machine.devices = 3;
  SetMachine(machine);
  CHECK(*cuda::UsableDevices() == std::vector<int>{0, 1, 2});
  CHECK(cuda::DriverVersion() == 13000);
  machine.has_blas = false;
  SetMachine(machine);
  CHECK(cuda::UsableDevices().status() ==
        absl::FailedPreconditionError("cuBLAS 13 cannot be loaded: emulated"));
  machine.major = 7;
  SetMachine(machine);
  CHECK(cuda::UsableDevices().status() ==
        absl::FailedPreconditionError(
            "cuda:0 (Emulated GPU) has compute capability 7.0; this build needs 8.0 or newer"));
  machine.driver_version = 0;
  SetMachine(machine);
  CHECK(cuda::UsableDevices().status() == cuda::Probe().status());
  CHECK(cuda::DriverVersion() == 0);
}

TEST_CASE("Why CUDA cannot be used is said") {
  unsetenv("CUDA_VISIBLE_DEVICES");
  Machine machine;
  CHECK(MakeOn(machine).ok());

  machine.driver_version = 0;
  CHECK(MakeOn(machine) ==
        absl::FailedPreconditionError(
            "compute device 'cuda:0' cannot be used: no NVIDIA driver was found (libcuda.so.1 "
            "cannot be loaded); install one that supports CUDA 13.0 or newer"));
  machine.driver_version = 12040;
  CHECK(MakeOn(machine) ==
        absl::FailedPreconditionError(
            "compute device 'cuda:0' cannot be used: the NVIDIA driver supports CUDA 12.4 at "
            "most, but this build needs 13.0; update the driver"));
  machine.driver_version = 13010;
  machine.devices = 0;
  CHECK(MakeOn(machine) ==
        absl::FailedPreconditionError(
            "compute device 'cuda:0' cannot be used: the NVIDIA driver (CUDA 13.1) shows no "
            "device; see whether nvidia-smi lists one and whether this container was given it"));
  setenv("CUDA_VISIBLE_DEVICES", "7", 1);
  CHECK(MakeOn(machine) ==
        absl::FailedPreconditionError(
            "compute device 'cuda:0' cannot be used: the NVIDIA driver (CUDA 13.1) shows no "
            "device; CUDA_VISIBLE_DEVICES is '7', which may hide them"));
  unsetenv("CUDA_VISIBLE_DEVICES");

  machine.devices = 1;
  CHECK(MakeOn(machine, 1) ==
        absl::InvalidArgumentError("compute device 'cuda:1' is not there; this host has 'cuda:0' alone"));
  machine.devices = 4;
  CHECK(
      MakeOn(machine, 4) ==
      absl::InvalidArgumentError("compute device 'cuda:4' is not there; this host has 'cuda:0' to 'cuda:3'"));
  machine.major = 7;
  machine.minor = 5;
  CHECK(MakeOn(machine, 3) == absl::FailedPreconditionError(
                                  "compute device 'cuda:3' cannot be used: cuda:3 (Emulated GPU) has compute "
                                  "capability 7.5; this build needs 8.0 or newer"));
  machine.major = 8;
  machine.has_blas = false;
  CHECK(MakeOn(machine) ==
        absl::FailedPreconditionError(
            "compute device 'cuda:0' cannot be used: cuBLAS 13 cannot be loaded: emulated"));
  CHECK(cuda_emulation::LiveObjects() == 0);
}

}  // namespace
}  // namespace weir
