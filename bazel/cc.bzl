"""cc_library, cc_binary and cc_test with a precompiled header: most of a compilation is otherwise the parsing of the same headers
(the standard library's, Abseil's, protobuf's). A source still includes whatever it uses; `./dev lint` compiles without the header.
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

# Assertions are most of a test's source. Without -Og and Catch2's way for fast compilation, in which an exception that an
# assertion lets out ends the test case, they take GCC a third longer.
TEST_OPTIONS = ["-Og", "-DCATCH_CONFIG_FAST_COMPILE"]

def _precompiled_header_impl(ctx):
    cpp = ctx.fragments.cpp
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    action = "c++-compile"
    context = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context

    # GCC, and Clang too, takes NAME.h.gch where a source begins with NAME.h, if it is there and was compiled with the same
    # options; else it takes NAME.h.
    header = ctx.actions.declare_file(ctx.label.name + ".h")
    ctx.actions.symlink(output = header, target_file = ctx.file.header)
    compiled = ctx.actions.declare_file(header.basename + ".gch")
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = ctx.file.header.path,
        output_file = compiled.path,
        user_compile_flags = cpp.copts + cpp.cxxopts + ctx.attr.copts + ["-x", "c++-header"],
        include_directories = context.includes,
        quote_include_directories = context.quote_includes,
        system_include_directories = context.system_includes,
        preprocessor_defines = context.defines,
    )
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(feature_configuration = features, action_name = action),
        arguments = cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = action,
            variables = variables,
        ),
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = action,
            variables = variables,
        ),
        inputs = depset([ctx.file.header], transitive = [context.headers, toolchain.all_files]),
        outputs = [compiled],
        mnemonic = "CppPrecompile",
        progress_message = "Compiling " + ctx.file.header.path,
    )
    return [
        DefaultInfo(files = depset([header, compiled])),
        CcInfo(compilation_context = cc_common.merge_cc_infos(cc_infos = [
            CcInfo(compilation_context = context),
            CcInfo(compilation_context = cc_common.create_compilation_context(
                # Clang names the header's source as well when it says what it has read.
                headers = depset([header, compiled] + ([ctx.file.header] if ctx.attr.clang else [])),
            )),
        ]).compilation_context),
    ]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "clang": attr.bool(doc = "The compiler is Clang, not GCC."),
        "copts": attr.string_list(doc = "Further options of the sources that take it."),
        "deps": attr.label_list(doc = "Whose headers it includes.", providers = [CcInfo]),
        "header": attr.label(mandatory = True, allow_single_file = [".h"]),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    incompatible_use_toolchain_transition = True,
    fragments = ["cpp"],
)

def _precompiled(attrs, header = "precompiled"):
    """attrs with the precompiled header, unless there is nothing to compile or the options differ, for which GCC would not take it."""
    if not attrs.get("srcs") or attrs.get("copts"):
        return attrs
    attrs = dict(attrs)
    attrs["copts"] = ["-Winvalid-pch", "-include", "$(BINDIR)/bazel/%s.h" % header]
    attrs["deps"] = attrs.get("deps", []) + ["//bazel:" + header]
    return attrs

def _with_assertions(attrs):
    attrs = _precompiled(attrs, "precompiled_for_tests")
    attrs["copts"] = attrs.get("copts", []) + TEST_OPTIONS
    return attrs

def cc_library(**attrs):
    native.cc_library(**_precompiled(attrs))

def cc_binary(**attrs):
    native.cc_binary(**_precompiled(attrs))

def cc_test(**attrs):
    native.cc_test(**_with_assertions(attrs))

def cases_library(**attrs):
    """Test cases that several tests link."""
    native.cc_library(
        testonly = True,
        # Nobody calls them: they register themselves.
        alwayslink = True,
        **_with_assertions(attrs)
    )
