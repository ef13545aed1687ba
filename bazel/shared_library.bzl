"""A shared library for programs that Bazel does not link."""

def shared_library(name, deps, exports, roots = [], visibility = None):
    """NAME, a shared library of `deps`, of which programs see what the version script `exports` names. It has the functions `roots`
    and all that they need; of a library that is not alwayslink it has nothing else."""
    native.cc_binary(
        name = name,
        linkshared = True,
        # --icf: functions with the same code are kept once, which takes 5 % off the wheel's part of it.
        linkopts = ["-Wl,--version-script=$(location %s)" % exports, "-Wl,--no-undefined", "-Wl,--icf=safe", "-Wl,-soname," + name] +
                   ["-Wl,--undefined=" + root for root in roots],
        visibility = visibility,
        deps = deps + [exports],
    )
