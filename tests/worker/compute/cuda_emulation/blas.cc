#include <cblas.h>
#include <cublas_v2.h>

#include <cstring>
#include <vector>

#include "common/cuda/cuda_libraries.h"
#include "tests/worker/compute/cuda_emulation/runtime.h"

namespace emulated_cuda {

struct BlasHandle {
  cudaStream_t stream = nullptr;
  void* workspace = nullptr;
};

namespace {

float FromBits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// The elements of a column-major [rows, columns] matrix with leading dimension ld, without the gaps, rounded
// as the product rounds them.
std::vector<float> Operand(const void* memory, cudaDataType_t type, int64_t ld, int64_t rows, int64_t columns,
                           cublasComputeType_t compute) {
  std::vector<float> values;
  values.reserve(static_cast<size_t>(rows * columns));
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = c * ld + r;
      if (type == CUDA_R_16BF) {
        values.push_back(FromBits(uint32_t{static_cast<const uint16_t*>(memory)[at]} << 16));
        continue;
      }
      const float x = static_cast<const float*>(memory)[at];
      // TF32 keeps 10 bits of fraction; ties go away from zero.
      const bool round = compute == CUBLAS_COMPUTE_32F_FAST_TF32 && std::isfinite(x);
      values.push_back(round ? FromBits((__float_as_uint(x) + 0x1000) & ~0x1fffu) : x);
    }
  }
  return values;
}

}  // namespace

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = new BlasHandle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  handle->workspace = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, size_t) {
  handle->workspace = workspace;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasGemmEx_64(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                               int64_t m, int64_t n, int64_t k, const void* alpha, const void* a,
                               cudaDataType_t a_type, int64_t lda, const void* b, cudaDataType_t b_type,
                               int64_t ldb, const void* beta, void* c, cudaDataType_t c_type, int64_t ldc,
                               cublasComputeType_t compute, cublasGemmAlgo_t) {
  // Without a workspace of its own a handle allocates, and its bits repeat on one stream only.
  if (handle->workspace == nullptr || c_type != CUDA_R_32F) return CUBLAS_STATUS_NOT_INITIALIZED;
  const int64_t a_rows = transa == CUBLAS_OP_N ? m : k, a_columns = transa == CUBLAS_OP_N ? k : m;
  const int64_t b_rows = transb == CUBLAS_OP_N ? k : n, b_columns = transb == CUBLAS_OP_N ? n : k;
  if (m < 1 || n < 1 || k < 0 || lda < a_rows || ldb < b_rows || ldc < m) return CUBLAS_STATUS_INVALID_VALUE;
  const float scale = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  const cudaError_t error = QueueWork(handle->stream, [=] {
    const std::vector<float> left = Operand(a, a_type, lda, a_rows, a_columns, compute);
    const std::vector<float> right = Operand(b, b_type, ldb, b_rows, b_columns, compute);
    cblas_sgemm(CblasColMajor, transa == CUBLAS_OP_N ? CblasNoTrans : CblasTrans,
                transb == CUBLAS_OP_N ? CblasNoTrans : CblasTrans, static_cast<blasint>(m),
                static_cast<blasint>(n), static_cast<blasint>(k), scale, left.data(),
                static_cast<blasint>(a_rows), right.data(), static_cast<blasint>(b_rows), keep,
                static_cast<float*>(c), static_cast<blasint>(ldc));
    return cudaSuccess;
  });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

const char* cublasGetStatusString(cublasStatus_t) { return "emulated"; }

}  // namespace emulated_cuda

// The emulation leaves out the product's loader of cuBLAS: this takes its place.
namespace weir::cuda {

absl::StatusOr<const BlasLibrary*> LoadBlasLibrary() {
  static const BlasLibrary library = {"13.1.0",           cublasCreate_v2,       cublasDestroy_v2,
                                      cublasSetStream_v2, cublasSetWorkspace_v2, cublasSetMathMode,
                                      cublasGemmEx_64,    cublasGetStatusString};
  if (!CurrentMachine().has_blas)
    return absl::FailedPreconditionError("cuBLAS 13 cannot be loaded: emulated");
  return &library;
}

}  // namespace weir::cuda
