"""Finds an installed C++ library through pkg-config and offers it as @name//:name."""

def _run(rctx, args):
    result = rctx.execute(args)
    if result.return_code != 0:
        fail("{}: {}\n{}Install what is missing with `./dev setup`.".format(
            rctx.name,
            " ".join([str(a) for a in args]),
            result.stderr,
        ))
    return [word for word in result.stdout.replace("\n", " ").split(" ") if word]

def _pkg_config_repository_impl(rctx):
    copts = []
    linkopts = []
    if rctx.attr.header_only:
        header = rctx.path("/usr/include/" + rctx.attr.header_only)
        if not header.exists:
            fail("{}: {} is not there. Install it with `./dev setup`.".format(rctx.name, header))
    else:
        tool = rctx.which("pkg-config")
        if not tool:
            fail("pkg-config is not installed. Run `./dev setup`.")
        modules = rctx.attr.modules

        # Only macros and include folders outside the compiler's own search path matter here; a -std flag of a
        # module (spdlog's, for one) must not override ours.
        copts = [f for f in _run(rctx, [tool, "--cflags"] + modules) if f.startswith("-D") or f.startswith("-I")]
        # .pc files list what any caller could need; as-needed keeps what this one does (fewer to load and to bundle).
        linkopts = ["-Wl,--as-needed"] + _run(rctx, [tool, "--libs"] + modules)
        if rctx.attr.extra_linkopts:
            # Nobody may call into these (they register themselves as they are loaded), so they are kept regardless.
            linkopts += ["-Wl,--push-state,--no-as-needed"] + rctx.attr.extra_linkopts + ["-Wl,--pop-state"]

    defines = [f[2:] for f in copts if f.startswith("-D")]
    includes = []
    for flag in copts:
        # A folder outside /usr/include is linked into the repository, so that Bazel sees its headers.
        if flag.startswith("-I") and flag[2:] != "/usr/include":
            link = "include{}".format(len(includes))
            rctx.symlink(flag[2:], link)
            includes.append(link)

    rctx.file("BUILD.bazel", """# Made by //bazel:pkg_config.bzl.
cc_library(
    name = "{name}",
    hdrs = glob([{globs}]),
    defines = {defines},
    includes = {includes},
    linkopts = {linkopts},
    visibility = ["//visibility:public"],
)
""".format(
        name = rctx.name,
        globs = ", ".join(['"{}/**"'.format(i) for i in includes]),
        defines = defines,
        includes = includes,
        linkopts = linkopts,
    ))

pkg_config_repository = repository_rule(
    implementation = _pkg_config_repository_impl,
    attrs = {
        "extra_linkopts": attr.string_list(doc = "Libraries of the package that have no .pc file."),
        "header_only": attr.string(doc = "A header under /usr/include, for a library without a .pc file."),
        "modules": attr.string_list(mandatory = True, doc = "pkg-config modules."),
    },
    local = True,
    environ = ["PKG_CONFIG_PATH"],
)
