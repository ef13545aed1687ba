"""Tests of the Python package."""

def weir_python_test(name, size = "medium", data = [], tags = []):
    """NAME.py on Debian's Python, NumPy and PyTorch, with libweir.so and the programs. Not under sanitizers, whose runtimes would
    have to be Python's."""
    native.sh_test(
        name = name,
        size = size,
        srcs = [name + ".py"],
        data = data + [
            "support.py",
            "//cli:weir",
            "//ps_server",
            "//python/capi:libweir.so",
            "//python/weir",
            "//worker",
        ],
        tags = [
            "no-asan",
            "no-tsan",
        ] + tags,
    )

def weir_torch_test(name, size = "medium"):
    """The same, for a test of weir.torch."""
    weir_python_test(
        name = name,
        size = size,
        data = [
            "torch_jobs.py",
            "train.py",
        ],
    )
