#include "common/cuda/cuda_libraries.h"

#include <dlfcn.h>

#include <type_traits>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace weir::cuda {
namespace {

absl::StatusOr<void*> Open() {
  // Where the loader looks (the program's own lib folder first), then where NVIDIA's packages put it.
  const std::string name = absl::StrCat("libcublas.so.", CUBLAS_VER_MAJOR);
  std::vector<std::string> errors;
  for (const std::string& path : {name, absl::StrCat("/usr/local/cuda/lib64/", name)}) {
    // RTLD_LOCAL: another cuBLAS in the process, say of a Python package, does not mix with this one.
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    errors.push_back(dlerror());
  }
  return absl::FailedPreconditionError(
      absl::StrCat("cuBLAS ", CUBLAS_VER_MAJOR, " cannot be loaded: ", absl::StrJoin(errors, "; "),
                   "; install it (Debian and Ubuntu: libcublas-13-0 from NVIDIA's repository) or add its "
                   "folder to LD_LIBRARY_PATH"));
}

absl::StatusOr<BlasLibrary> Load() {
  WEIR_ASSIGN_OR_RETURN(void* const opened, Open());
  BlasLibrary library;
  decltype(&cublasGetProperty) get_property = nullptr;
  std::vector<std::string> missing;
  const auto get = [&](const char* symbol, auto* function) {
    *function = reinterpret_cast<std::remove_reference_t<decltype(*function)>>(dlsym(opened, symbol));
    if (*function == nullptr) missing.push_back(symbol);
  };
  get("cublasGetProperty", &get_property);
  get("cublasCreate_v2", &library.create);
  get("cublasDestroy_v2", &library.destroy);
  get("cublasSetStream_v2", &library.set_stream);
  get("cublasSetWorkspace_v2", &library.set_workspace);
  get("cublasSetMathMode", &library.set_math_mode);
  get("cublasGemmEx_64", &library.gemm_ex);
  get("cublasGetStatusString", &library.status_string);
  if (!missing.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("cuBLAS ", CUBLAS_VER_MAJOR, " lacks ",
                                                      absl::StrJoin(missing, ", "),
                                                      "; its installation is damaged or of another version"));
  }
  int version[3] = {};
  get_property(MAJOR_VERSION, &version[0]);
  get_property(MINOR_VERSION, &version[1]);
  get_property(PATCH_LEVEL, &version[2]);
  library.version = absl::StrJoin(version, ".");
  return library;
}

}  // namespace

absl::StatusOr<const BlasLibrary*> LoadBlasLibrary() {
  // Never destroyed: a backend may outlive the end of main.
  static const auto& library = *new absl::StatusOr<BlasLibrary>(Load());
  if (!library.ok()) return library.status();
  return &*library;
}

}  // namespace weir::cuda
