"""A shared library with position-independent code."""

def _position_independent_impl(settings, attr):
    # Beside this library everything is linked into programs, so .bazelrc has Bazel compile each source once, for programs. The
    # library's sources are compiled a second time, with these options. Calls within the library stay direct, as in a program.
    return {"//command_line_option:copt": settings["//command_line_option:copt"] + ["-fPIC", "-fno-semantic-interposition", "-fno-gnu-unique"]}

_position_independent = transition(
    implementation = _position_independent_impl,
    inputs = ["//command_line_option:copt"],
    outputs = ["//command_line_option:copt"],
)

def _shared_library_impl(ctx):
    library = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(output = library, target_file = ctx.attr.library[0].files.to_list()[0])
    return [DefaultInfo(files = depset([library]), runfiles = ctx.runfiles([library]))]

_shared_library = rule(
    implementation = _shared_library_impl,
    attrs = {
        "library": attr.label(cfg = _position_independent),
        "_allowlist_function_transition": attr.label(default = "@bazel_tools//tools/allowlists/function_transition_allowlist"),
    },
)

def shared_library(name, deps, exports, roots = [], visibility = None):
    """NAME, a shared library of `deps`, of which programs see what the version script `exports` names. It has the functions `roots`
    and all that they need; of a library that is not alwayslink it has nothing else."""
    native.cc_binary(
        name = name + ".linked",
        linkshared = True,
        # --icf: functions with the same code are kept once, which takes 5 % off the wheel's part of it.
        linkopts = ["-Wl,--version-script=$(location %s)" % exports, "-Wl,--no-undefined", "-Wl,--icf=safe", "-Wl,-soname," + name] +
                   ["-Wl,--undefined=" + root for root in roots],
        tags = ["manual"],
        deps = deps + [exports],
    )
    _shared_library(name = name, library = name + ".linked", visibility = visibility)
