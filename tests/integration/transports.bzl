"""Tests of jobs, over several transports."""

def transport_tests(name, srcs, deps, transports, size, **kwargs):
    """A cc_test that runs over the default transport, and NAME_TRANSPORT for each further one.

    These run the cases that are tagged [transports], with WEIR_TEST_TRANSPORT set (transport.h).
    """
    cases = name + "_cases"
    native.cc_library(
        name = cases,
        testonly = True,
        srcs = srcs,
        deps = deps,
        # Nobody calls them: they register themselves.
        alwayslink = True,
        **kwargs
    )
    native.cc_test(
        name = name,
        size = size,
        deps = [":" + cases],
    )
    for transport in transports:
        native.cc_test(
            name = name + "_" + transport,
            size = size,
            deps = [":" + cases],
            env = {
                "WEIR_TEST_TRANSPORT": transport,
                # What --test_filter sets; tests/catch_main.cc takes it.
                "TESTBRIDGE_TEST_ONLY": "[transports]",
            },
        )
