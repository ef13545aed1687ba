#pragma once

#include <cublas_v2.h>

#include <string>

#include "absl/status/statusor.h"

namespace weir::cuda {

// The functions of cuBLAS that are used. The library is loaded when a CUDA device is asked for, not linked:
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

// Loads it once; later calls give the first one's result. It stays loaded. Thread-safe. FailedPrecondition:
// where it was looked for.
absl::StatusOr<const BlasLibrary*> LoadBlasLibrary();

}  // namespace weir::cuda
