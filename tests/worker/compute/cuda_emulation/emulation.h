#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/compute/compute_backend.h"

// A CUDA device on the CPU, for tests on machines without one. The host's compiler compiles the .cu files and
// the backend over them against include/, whose functions are these:
//   - Streams run when a caller waits, one operation at a time, from a random stream that no event holds
//     back. Code that relies on an order that it did not ask for gives wrong results for some seed.
//   - A block's threads are fibers that switch at __syncthreads, in a random order: a missing barrier shows.
//     A barrier that not all threads of a block reach fails.
//   - Device memory begins as NaN and lies between guards, which every wait checks. Device pointers are host
//     pointers, so reads out of bounds show only by the NaN that they return.
//   - cuBLAS is OpenBLAS, with operands rounded as the precision says.
//   - Streams, events and memory that are not freed are counted.
// It shows that the code is right, not that a GPU runs it right: no other compiler, memory model or speed.
namespace weir::cuda_emulation {

struct Machine {
  int devices = 1;
  int driver_version = 13000;  // 0: no driver
  int major = 9, minor = 0;
  bool has_blas = true;
  bool captures = true;  // streams into graphs
  size_t memory_bytes = size_t{4} << 30;
  uint64_t seed = 1;
};

// Applies to all later calls. Existing streams keep what they have queued.
void SetMachine(const Machine& machine);

// The number of live cudaMallocs, cudaHostAllocs, streams, events and graphs.
int64_t LiveObjects();

// Like cuda::MakeBackend of worker/compute/compute_backend.h, on the emulated machine.
absl::StatusOr<std::unique_ptr<ComputeBackend>> MakeBackend(int device, Precision precision,
                                                            size_t arena_chunk_bytes);

}  // namespace weir::cuda_emulation
