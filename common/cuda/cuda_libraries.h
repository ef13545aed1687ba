#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace weir::cuda {

// The runtime's error as a Status: ResourceExhausted for memory, Internal otherwise. `what` failed.
inline absl::Status ToStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const auto message =
      absl::StrCat(what, ": ", cudaGetErrorName(error), " (", cudaGetErrorString(error), ")");
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

// The functions of cuBLAS that Weir uses. The library is loaded when a CUDA device is asked for, not linked:
// its 600 MB are missing on hosts without GPUs, where the same programs must start.
struct BlasLibrary {
  std::string version;  // "13.1.0"
  decltype(&cublasCreate_v2) create;
  decltype(&cublasDestroy_v2) destroy;
  decltype(&cublasSetStream_v2) set_stream;
  decltype(&cublasSetWorkspace_v2) set_workspace;
  decltype(&cublasSetMathMode) set_math_mode;
  decltype(&cublasGemmEx_64) gemm_ex;
  decltype(&cublasGetStatusString) status_string;
};

// Loads the library once; later calls return the result of the first. The library stays loaded. Thread-safe.
// FailedPrecondition names the places that were tried.
absl::StatusOr<const BlasLibrary*> LoadBlasLibrary();

}  // namespace weir::cuda
