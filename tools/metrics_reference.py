#!/usr/bin/python3
"""Makes docs/metrics_list.md, the list of all metrics, from the sources of the servers.

  tools/metrics_reference.py           writes the page
  tools/metrics_reference.py --check   ends with 1 if the page is not what this program would write
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = "docs/metrics_list.md"
SOURCES = "ps_server/**/*.cc"
# AddGauge("weir_x", "What it " "is.", ...), and lambdas that are called counter and gauge.
METRIC = re.compile(r'(\w*(?:[gG]auges?|[cC]ounters?))\(\s*"(weir_\w+)",\s*((?:"(?:[^"\\]|\\.)*"\s*)+)')
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
# (names, heading, labels); the first that fits counts.
GROUPS = [
    (r"weir_job_logged", "What the program logs, on ps:0", "`name`, as in `opt.log()`"),
    (r"weir_job_", "The job, on ps:0", ""),
    (r"weir_worker_", "Each worker, on ps:0", "`task`, such as `worker:1`"),
    (r"weir_table_", "Each table, on each shard", "`shard`, `table`"),
    (r"weir_", "Each shard", "`shard`; `reason` of refused calls, `limit` of reached limits"),
]
INTRO = """# All metrics

What `/metrics` of a server has. [metrics.md](metrics.md) says how to read them. `tools/metrics_reference.py` makes this page.
Each server adds `process_resident_memory_bytes`, `process_cpu_seconds_total`, `process_open_fds` and
`process_start_time_seconds`.
"""


def metrics(root):
    """{name: (type, meaning)}."""
    found = {}
    for path in sorted(root.glob(SOURCES)):
        for call, name, text in METRIC.findall(path.read_text(encoding="utf-8")):
            found[name] = ("counter" if "ounter" in call else "gauge", "".join(LITERAL.findall(text)))
    return found


def page(root):
    lines, left = [INTRO], metrics(root)
    groups = []
    for names, heading, labels in GROUPS:
        chosen = {name: left.pop(name) for name in list(left) if re.match(names, name)}
        groups.append((heading, labels, chosen))
    groups.sort(key=lambda group: group[0] != "The job, on ps:0")
    for heading, labels, chosen in groups:
        lines.append(f"## {heading}\n")
        if labels:
            lines.append(f"Labels: {labels}.\n")
        lines.append("| metric | type | meaning |\n|---|---|---|")
        lines += [f"| `{name}` | {kind} | {meaning} |" for name, (kind, meaning) in chosen.items()]
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def main():
    path, text = ROOT / PAGE, page(ROOT)
    if sys.argv[1:] == ["--check"]:
        if path.read_text(encoding="utf-8") != text:
            sys.exit(f"{PAGE} is not what the sources say: run tools/metrics_reference.py")
    else:
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
