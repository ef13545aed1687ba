#include "worker/compute/cuda_blas.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace weir::cuda {

absl::StatusOr<std::unique_ptr<Blas>> Blas::Create(cudaStream_t stream, void* workspace,
                                                   Precision precision) {
  WEIR_ASSIGN_OR_RETURN(const BlasLibrary* library, LoadBlasLibrary());
  std::unique_ptr<Blas> blas(new Blas(*library, precision));
  WEIR_RETURN_IF_ERROR(blas->Check(library->create(&blas->handle_), "cublasCreate"));
  const cublasHandle_t handle = blas->handle_;
  WEIR_RETURN_IF_ERROR(blas->Check(library->set_stream(handle, stream), "cublasSetStream"));
  // Set after the stream, because setting the stream puts the library's own workspace back.
  WEIR_RETURN_IF_ERROR(
      blas->Check(library->set_workspace(handle, workspace, kWorkspaceBytes), "cublasSetWorkspace"));
  WEIR_RETURN_IF_ERROR(blas->Check(library->set_math_mode(handle, CUBLAS_DEFAULT_MATH), "cublasSetMathMode"));
  return blas;
}

Blas::~Blas() {
  if (handle_ != nullptr) library_.destroy(handle_);
}

absl::Status Blas::Gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                        const void* a, const void* b, float beta, float* c) {
  const cudaDataType_t operands = precision_ == Precision::kBfloat16 ? CUDA_R_16BF : CUDA_R_32F;
  const cublasComputeType_t compute =
      precision_ == Precision::kTf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  // cuBLAS is column-major and sees our matrices as their transposes: c^T = op(b)^T op(a)^T.
  return Check(library_.gemm_ex(handle_, transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                                transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &alpha, b, operands,
                                transpose_b ? k : n, a, operands, transpose_a ? m : k, &beta, c, CUDA_R_32F,
                                n, compute, CUBLAS_GEMM_DEFAULT),
               "cublasGemmEx");
}

absl::Status Blas::Check(cublasStatus_t status, const char* what) const {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const auto message = absl::StrCat(what, ": ", library_.status_string(status));
  if (status == CUBLAS_STATUS_ALLOC_FAILED) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

}  // namespace weir::cuda
