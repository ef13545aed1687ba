#!/usr/bin/python3
"""Checks docs/metrics_list.md: it is what tools/metrics_reference.py makes of the servers' sources, and a counter is called so. First
shows that it finds planted faults.
"""
import importlib.util
import os
import pathlib

import tree_check

TOOL = pathlib.Path(os.path.realpath("WORKSPACE")).parent / "tools/metrics_reference.py"
SPEC = importlib.util.spec_from_file_location("metrics_reference", TOOL)
reference = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(reference)


def rows(text):
    return {line for line in text.splitlines() if line.startswith("| `weir_")}


def faults(root):
    metrics, listed, page = reference.metrics(root), (root / reference.PAGE).read_text(encoding="utf-8"), reference.page(root)
    if not metrics:
        yield f"{reference.SOURCES} has no metrics"
    for name, (kind, _) in sorted(metrics.items()):
        if (kind == "counter") != name.endswith("_total"):
            yield f"{name} is no {kind}"
    for row in sorted(rows(page) ^ rows(listed)):
        yield f"only {'the sources have' if row in page else reference.PAGE + ' has'} {row}"
    if rows(page) == rows(listed) and page != listed:
        yield f"{reference.PAGE} is not what tools/metrics_reference.py makes"


tree_check.check_planted(faults, {
    reference.PAGE: "| `weir_a_total` | gauge | x |\n| `weir_b` | gauge | X. |\n",
    "ps_server/pages.cc": 'AddGauge("weir_a_total", "x");\ncounter(\n    "weir_c", "Y " "z.", f);\n',
}, [
    "weir_a_total is no gauge", "weir_c is no counter", f"only {reference.PAGE} has | `weir_b`",
    "only the sources have | `weir_c` | counter | Y z. |",
])
tree_check.main(faults)
