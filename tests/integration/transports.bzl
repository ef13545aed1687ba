"""Tests of jobs, over several transports."""

load("//bazel:cc.bzl", "cases_library", "cc_test")

def transport_tests(name, srcs, deps, transports, size, **kwargs):
    """A cc_test that runs over the default transport, and NAME_TRANSPORT for each further one.

    These run the cases that are tagged [transports], with WEIR_TEST_TRANSPORT set (transport.h).
    """
    cases = name + "_cases"
    cases_library(
        name = cases,
        srcs = srcs,
        deps = deps,
        **kwargs
    )
    cc_test(
        name = name,
        size = size,
        deps = [":" + cases],
    )
    for transport in transports:
        cc_test(
            name = name + "_" + transport,
            size = size,
            deps = [":" + cases],
            env = {
                "WEIR_TEST_TRANSPORT": transport,
                # What --test_filter sets; tests/catch_main.cc takes it.
                "TESTBRIDGE_TEST_ONLY": "[transports]",
            },
        )
