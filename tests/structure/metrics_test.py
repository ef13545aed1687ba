#!/usr/bin/python3
"""Checks docs/metrics.md against the servers: it lists each metric that they have, and no other, with its type. First shows that
it finds planted faults.
"""
import os
import pathlib
import re
import sys
import tempfile

PAGE = "docs/metrics.md"
SOURCES = "ps_server/**/*.cc"
ROW = re.compile(r"^\| `(weir_\w+)` \| (\w+) \|", re.M)
NAME = re.compile(r'"(weir_[a-z_]+)"')


def faults(root):
    page = dict(ROW.findall((root / PAGE).read_text(encoding="utf-8")))
    served = {name for path in sorted(root.glob(SOURCES)) for name in NAME.findall(path.read_text(encoding="utf-8"))}
    for name in sorted(served - page.keys()):
        yield f"the page does not list {name}"
    for name in sorted(page.keys() - served):
        yield f"no server has {name}"
    for name, kind in sorted(page.items()):
        if (kind == "counter") != name.endswith("_total"):
            yield f"{name} is no {kind}"
    if not served:
        yield f"{SOURCES} has no metrics"


def check_that_faults_are_found():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "docs").mkdir()
        (root / "ps_server").mkdir()
        (root / PAGE).write_text("| `weir_a_total` | gauge | x |\n| `weir_b` | gauge | x |\n", encoding="utf-8")
        (root / "ps_server/pages.cc").write_text('f("weir_a_total", g("weir_c"));\n', encoding="utf-8")
        got = list(faults(root))
    if got != ["the page does not list weir_c", "no server has weir_b", "weir_a_total is no gauge"]:
        sys.exit("the test itself is broken\n" + "\n".join(got))


def main():
    check_that_faults_are_found()
    # The tree itself, not the runfiles: WORKSPACE is a link into it.
    found = list(faults(pathlib.Path(os.path.realpath("WORKSPACE")).parent))
    print("\n".join(found))
    print(f"{len(found)} faults")
    sys.exit(1 if found else 0)


main()
