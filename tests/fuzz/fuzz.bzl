"""Declares a fuzz target: NAME_fuzz, from the source NAME_fuzz.cc, which implements fuzz_target.h.

`./dev fuzz` builds it with libFuzzer. Every other build makes a test of it, which reads the target's seeds, its corpus
(corpus/NAME: one file for each input that once was handled wrongly), and mutations of these from a fixed seed.
"""

load("//bazel:cc.bzl", "cc_test")

def fuzz_target(name, deps = []):
    cc_test(
        name = name + "_fuzz",
        size = "small",
        srcs = [name + "_fuzz.cc"],
        args = ["tests/fuzz/corpus/" + name],
        data = native.glob(["corpus/" + name + "/*"]),
        linkopts = select({
            "//bazel:libfuzzer": ["-fsanitize=fuzzer"],
            "//conditions:default": [],
        }),
        deps = deps + [
            ":fuzz_target",
            "@abseil",
        ] + select({
            "//bazel:libfuzzer": [":libfuzzer_entry"],
            "//conditions:default": [":replay_main"],
        }),
    )
