"""Turns `bazel aquery --output=jsonproto` on standard input into a compile_commands.json that clang tools can read.

usage: compile_commands.py WORKSPACE OUTPUT_BASE
"""
import json
import sys

# Flags that only GCC knows, and flags that name outputs.
DROP = {"-fno-canonical-system-headers", "-Wno-free-nonheap-object", "-Wunused-but-set-parameter", "-Wno-restrict",
        "-Wno-tsan", "-Werror", "-MD"}
# -include: the header that GCC has precompiled. Sources must do without.
DROP_WITH_VALUE = {"-MF", "-o", "-include"}


def clean(arguments, external):
    out = []
    skip = False
    for arg in arguments:
        if skip:
            skip = False
        elif arg in DROP_WITH_VALUE:
            skip = True
        elif arg not in DROP and not arg.startswith(("-frandom-seed", "--param")):
            # External repositories are links under the output base, not under the workspace.
            for prefix in ("", "-I", "-iquote", "-isystem"):
                if arg.startswith(prefix + "external/"):
                    arg = prefix + external + arg[len(prefix) + len("external/"):]
            out.append(arg)
    return out


def main():
    workspace, output_base = sys.argv[1:]
    entries = {}
    for action in json.load(sys.stdin).get("actions", []):
        arguments = action["arguments"]
        source = arguments[arguments.index("-c") + 1]
        if not source.startswith(("bazel-out/", "external/")):
            entries[source] = {
                "directory": workspace,
                "file": source,
                "arguments": clean(arguments, output_base + "/external/"),
            }
    json.dump([entries[source] for source in sorted(entries)], sys.stdout, indent=1)


main()
