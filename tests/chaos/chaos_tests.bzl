"""Short runs of chaos as tests."""

load("//bazel:cc.bzl", "cc_test")

def chaos_run_test(name, args, tags = []):
    """Some jobs of real processes, which args choose."""
    cc_test(
        name = name,
        size = "medium",
        srcs = ["main.cc"],
        args = args,
        data = [
            "//ps_server",
            "//worker",
        ],
        tags = tags,
        deps = [
            ":run_chaos",
            ":scratch_folder",
            "@abseil",
            "@cli11",
        ],
    )
