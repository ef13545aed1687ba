"""Runs Clang over the files of compile_commands.json, as many at once as there are cores.

usage: lint.py warnings [FILE...]    Clang's warnings, thread safety included, as errors; not over tests
       lint.py tidy [FILE...]        clang-tidy with the project's .clang-tidy
"""
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile

# Added after the build's own arguments, so these win.
CLANG = ["-fsyntax-only", "-Werror", "-Wthread-safety", "-Wno-unused-parameter",
         "-Wno-unknown-warning-option", "-Wno-unknown-pragmas"]
# Flags that only GCC, which builds the product, knows.
GCC_ONLY = {"-fno-tree-loop-distribute-patterns"}
HEADERS = "bazel/precompiled_headers.h"
TIDY = ["clang-tidy-14", "--quiet", "-p", ".", "--extra-arg=-Wno-unknown-warning-option",
        "--extra-arg=-Wno-unknown-pragmas"]


def run(command):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    # Drops the counts of warnings in system headers.
    lines = [line for line in result.stdout.splitlines(True) if not line.endswith(" generated.\n")]
    return result.returncode == 0, "".join(lines)


def precompiled(command, folder):
    """The arguments by which Clang takes the headers that most sources include from a file, made with this source's options."""
    made = os.path.join(folder, "headers.pch")
    end = command.index("-c")
    subprocess.run([*command[:end], "-x", "c++-header", "-fpch-instantiate-templates", HEADERS, "-o", made], check=True)
    return ["-include-pch", made]


def main():
    mode, only = sys.argv[1], {os.path.relpath(f) for f in sys.argv[2:]}
    with open("compile_commands.json", encoding="utf-8") as f:
        entries = json.load(f)
    folder = tempfile.TemporaryDirectory()  # goes with the process
    if mode == "warnings":
        commands = {e["file"]: ["clang++-14"] + [a for a in e["arguments"][1:] if a not in GCC_ONLY] + CLANG
                    for e in entries if not e["file"].startswith("tests/") and (not only or e["file"] in only)}
    elif mode == "tidy":
        commands = {e["file"]: TIDY + [e["file"]] for e in entries if not only or e["file"] in only}
    else:
        sys.exit(__doc__)
    unknown = only - commands.keys()
    if unknown:
        sys.exit(f"lint: no source of the build: {' '.join(sorted(unknown))}")
    headers = precompiled(next(iter(commands.values())), folder.name) if mode == "warnings" else []

    def check(command):
        ok, output = run(command + headers)
        # A source with options of its own does not take them.
        return (ok, output) if ok or not headers else run(command)

    bad = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, (source, (ok, output)) in enumerate(zip(commands, pool.map(check, commands.values())), 1):
            print(f"[{done} / {len(commands)}] {source}", file=sys.stderr)  # for progress.py
            if not ok:
                bad.append(source)
                print(output, end="", flush=True)
    print(f"lint: {mode}: {len(commands)} files, {len(bad)} with findings {' '.join(bad)}".rstrip())
    sys.exit(1 if bad else 0)


main()
