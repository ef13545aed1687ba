"""Finds the CUDA Toolkit where nvcc is. Without it @cuda//:defs.bzl says so and CUDA code is left out of the build."""

def _cuda_repository_impl(rctx):
    nvcc = rctx.which("nvcc")
    home = rctx.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    if not nvcc and rctx.path(home + "/bin/nvcc").exists:
        nvcc = rctx.path(home + "/bin/nvcc")
    found = nvcc != None
    if found:
        home = str(nvcc.dirname.dirname)
        rctx.symlink(home + "/include", "include")
    rctx.file("defs.bzl", "CUDA_FOUND = {}\nCUDA_HOME = {}\n".format(found, repr(home if found else "")))
    rctx.file("BUILD.bazel", """# Made by //bazel:cuda.bzl.
cc_library(
    name = "cuda",
    hdrs = glob(["include/**"], allow_empty = True),
    includes = ["include"],
    linkopts = {linkopts},
    visibility = ["//visibility:public"],
)
""".format(linkopts = [
        # Static, so that programs start where neither toolkit nor driver is; it loads the driver when it is called.
        # cuBLAS is loaded by who needs it (common/cuda/cuda_libraries.h).
        home + "/lib64/libcudart_static.a",
        "-ldl",
        "-lrt",
        "-lpthread",
    ] if found else []))

cuda_repository = repository_rule(
    implementation = _cuda_repository_impl,
    local = True,
    environ = ["CUDA_HOME", "PATH"],
)
