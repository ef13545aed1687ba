#!/usr/bin/python3
"""Compares the program in the comment of client/client.h with the one that tests/integration/client_example_test.cc runs. First
shows that it finds a difference.
"""
import tree_check

PAGE = "client/client.h"
PROGRAM = "tests/integration/client_example_test.cc"
BEGIN, END = "absl::Status Train(", "}"


def program(lines):
    """The lines from the beginning of the function to its end."""
    begin = next((i for i, line in enumerate(lines) if line.startswith(BEGIN)), len(lines))
    end = next((i for i in range(begin, len(lines)) if lines[i] == END), len(lines))
    return lines[begin:end + 1]


def faults(root):
    page, source = ((root / path).read_text(encoding="utf-8").splitlines() for path in (PAGE, PROGRAM))
    shown = program([line.removeprefix("//").removeprefix("   ") for line in page if line.startswith("//")])
    run = program(source)
    if not run:
        yield f"{PROGRAM} has no {BEGIN}"
    elif shown != run:
        yield f"{PAGE} shows a different program from {PROGRAM} runs"


SOURCE = "absl::Status Train() {\n  Run();\n}\nint x;\n"
SHOWN = "// Shows:\n//\n//   absl::Status Train() {\n//     Run();\n//   }\n// And more.\n"
for page, source, expected in ((SHOWN, SOURCE, []),
                               (SHOWN.replace("Run", "Walk"), SOURCE, [f"{PAGE} shows a different program"]),
                               (SHOWN, "", [f"{PROGRAM} has no"])):
    tree_check.check_planted(faults, {PAGE: page, PROGRAM: source}, expected)
tree_check.main(faults)
