#!/usr/bin/python3
"""Checks docs/operations.md against the sources: each message of its troubleshooting table stands in the C++ sources, and it has
a row for each alert, and no other. First shows that it finds planted faults.
"""
import re

import tree_check

PAGE = "docs/operations.md"
ALERTS = "deploy/kustomize/components/monitoring/alerts.yaml"
SOURCES = ("ps_server", "client", "worker", "common", "cli")
ADJACENT = re.compile(r'"\s*"')
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def section(text, title):
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def first_cells(rows):
    for row in re.findall(r"^\| (`.*?) \|", rows, re.M):
        yield from re.findall(r"`([^`]+)`", row)


def faults(root):
    page = (root / PAGE).read_text(encoding="utf-8")
    literals = "\n".join(literal for folder in SOURCES for path in sorted((root / folder).rglob("*.cc"))
                         for literal in LITERAL.findall(ADJACENT.sub("", path.read_text(encoding="utf-8"))))
    for message in first_cells(section(page, "Troubleshooting")):
        if not all(part.strip() in literals for part in re.split(r"\bN\b", message)):
            yield f"no program says '{message}'"
    told = set(first_cells(section(page, "Alerts")))
    alerts = set(re.findall(r"- alert: (\w+)", (root / ALERTS).read_text(encoding="utf-8")))
    for alert in sorted(alerts - told):
        yield f"the page does not list the alert {alert}"
    for alert in sorted(told - alerts):
        yield f"there is no alert {alert}"


tree_check.check_planted(faults, {
    PAGE: "\n## Alerts\n| `A`, `B` | x |\n## Troubleshooting\n| `lost N of 5` | x `y` |\n| `lost all` | x |\n",
    ALERTS: "- alert: B\n- alert: C\n",
    "worker/a.cc": 'f("lost "\n  " of 5", x);\nf("lost")\n',
}, ["no program says 'lost all'", "the page does not list the alert C", "there is no alert A"])
tree_check.main(faults)
