#!/usr/bin/python3
"""Checks docs/metrics.md against the servers: it lists each metric that they have, and no other, with its type. First shows that
it finds planted faults.
"""
import re

import tree_check

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


tree_check.check_planted(faults, {
    PAGE: "| `weir_a_total` | gauge | x |\n| `weir_b` | gauge | x |\n",
    "ps_server/pages.cc": 'f("weir_a_total", g("weir_c"));\n',
}, ["the page does not list weir_c", "no server has weir_b", "weir_a_total is no gauge"])
tree_check.main(faults)
