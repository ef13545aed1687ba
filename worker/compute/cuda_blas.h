#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cuda/cuda_blas_library.h"
#include "worker/compute/compute_backend.h"

namespace weir::cuda {

// Row-major matrix products by cuBLAS on one stream. The workspace is fixed, so that the same product gives
// the same bits every time and may be captured in a graph. Not thread-safe.
class Blas {
 public:
  // The most that cuBLAS wants on current devices.
  static constexpr size_t kWorkspaceBytes = size_t{32} << 20;

  // `workspace` is kWorkspaceBytes of device memory of the caller's; it and `stream` outlive this. Uses the
  // current device.
  static absl::StatusOr<std::unique_ptr<Blas>> Create(cudaStream_t stream, void* workspace,
                                                      Precision precision);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  // As ComputeBackend::Gemm. With Precision::kBfloat16 a and b are bfloat16's bits, else float32.
  absl::Status Gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                    const void* a, const void* b, float beta, float* c);

 private:
  Blas(const BlasLibrary& library, Precision precision) : library_(library), precision_(precision) {}
  absl::Status Check(cublasStatus_t status, const char* what) const;

  const BlasLibrary& library_;
  const Precision precision_;
  cublasHandle_t handle_ = nullptr;
};

}  // namespace weir::cuda
