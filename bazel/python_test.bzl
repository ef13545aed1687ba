"""Tests that are Python programs."""

def source_tree_test(name, size = "small", data = [], tags = []):
    """NAME.py as an sh_test, since the packaged Bazel would look for a Python of its own for py_test. It reads the
    source tree, which Bazel does not see, so it runs every time, and not under sanitizers."""
    native.sh_test(
        name = name,
        size = size,
        srcs = [name + ".py"],
        data = ["//:WORKSPACE"] + data,
        tags = ["external", "local", "no-asan", "no-tsan"] + tags,
    )
