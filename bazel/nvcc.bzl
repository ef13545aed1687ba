"""CUDA sources in C++ libraries."""

load("@cuda//:defs.bzl", "CUDA_HOME")

# Code for A100 and H100 and, where the first digit is the same, for what came after each; the PTX is for devices that are
# newer still, whose driver compiles it. common/cuda/cuda_device.cc refuses older ones.
_ARCHITECTURES = [
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=[sm_90,compute_90]",
]

def cuda_library(name, srcs, hdrs, deps = [], visibility = None):
    """A cc_library of .cu files, each compiled by nvcc on its own.

    Args:
      name: the library's name.
      srcs: .cu files of this package.
      hdrs: the headers of this package that they include; others may come from the toolkit alone.
      deps: for those who use it.
      visibility: as everywhere.
    """
    objects = []
    for src in srcs:
        out = src[:-len(".cu")] + ".cu.o"
        objects.append(out)
        native.genrule(
            name = name + "_" + src[:-len(".cu")],
            srcs = [src] + hdrs,
            outs = [out],
            # The same bytes wherever the source tree is: no random numbers in names, no names of temporary files, and no -lineinfo,
            # which has absolute paths.
            cmd = " ".join([
                CUDA_HOME + "/bin/nvcc",
                "-std=c++17 -O3 -I. -objtemp --frandom-seed=" + src,
                "-Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror,-fPIC,-fno-omit-frame-pointer",
            ] + ["'{}'".format(a) for a in _ARCHITECTURES] + [
                "-c $(location {}) -o $@".format(src),
            ]),
            message = "nvcc",
        )
    native.cc_library(
        name = name,
        srcs = objects,
        hdrs = hdrs,
        deps = deps + ["@cuda"],
        visibility = visibility,
    )
