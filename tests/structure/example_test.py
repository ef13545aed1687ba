#!/usr/bin/python3
"""Compares the program in the comment of client/client.h with the one that tests/integration/client_example_test.cc runs. First
shows that it finds a difference.
"""
import os
import pathlib
import sys

PAGE = "client/client.h"
PROGRAM = "tests/integration/client_example_test.cc"
BEGIN, END = "absl::Status Train(", "}"


def program(lines):
    """The lines from the beginning of the function to its end."""
    begin = next((i for i, line in enumerate(lines) if line.startswith(BEGIN)), len(lines))
    end = next((i for i in range(begin, len(lines)) if lines[i] == END), len(lines))
    return lines[begin:end + 1]


def faults(page, source):
    shown = program([line.removeprefix("//").removeprefix("   ") for line in page.splitlines() if line.startswith("//")])
    run = program(source.splitlines())
    if not run:
        return [f"{PROGRAM} has no {BEGIN}"]
    return [] if shown == run else [f"{PAGE} shows another program than {PROGRAM} runs"]


def check_that_faults_are_found():
    source = "absl::Status Train() {\n  Run();\n}\nint x;\n"
    page = "// Shows:\n//\n//   absl::Status Train() {\n//     Run();\n//   }\n// And more.\n"
    if faults(page, source) or not faults(page.replace("Run", "Walk"), source) or not faults(page, ""):
        sys.exit("the test itself is broken")


def main():
    check_that_faults_are_found()
    # The tree itself, not the runfiles: WORKSPACE is a link into it.
    root = pathlib.Path(os.path.realpath("WORKSPACE")).parent
    found = faults((root / PAGE).read_text(encoding="utf-8"), (root / PROGRAM).read_text(encoding="utf-8"))
    print("\n".join(found))
    print(f"{len(found)} faults")
    sys.exit(1 if found else 0)


main()
