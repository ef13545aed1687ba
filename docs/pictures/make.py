#!/usr/bin/python3
"""Makes the pictures of the pages: docs/pictures/make.py [peers] [recovery] [page]; without a name, all.

  peers     peers.svg: the table "Beside its peers" of docs/benchmarks/results.md as bars
  recovery  recovery.svg: a terminal in which servers and workers of configs/digits_recovery.json are killed, from a real run
  page      page.png: the page of ps:0 in Chromium (Debian's package chromium), from a real run

recovery and page run bazel-bin/cli/weir, and take about half a minute each.
"""
import html
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WEIR = ROOT / "bazel-bin/cli/weir"
STYLE = """
text { font: 13px ui-sans-serif, system-ui, "DejaVu Sans", sans-serif; fill: #1f2328; }
.name { text-anchor: end; } .head { font-weight: 600; } .note { font-size: 11px; fill: #59636e; }
.weir { fill: #0b8573; } .peer { fill: #b6bfc9; }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .note { fill: #9198a1; } .peer { fill: #57606a; } .weir { fill: #2bb3a0; } }
"""


# ---- bars ------------------------------------------------------------------------------------------------------------

def rows_of_peers():
    """(name, steps a second in async, in sync), of which one may be None, from the page's table."""
    page = (ROOT / "docs/benchmarks/results.md").read_text(encoding="utf-8")
    section = page.partition("\n## Beside its peers\n")[2].partition("\n## ")[0]
    number = r"([\d,]+|-)[^|]*"
    for name, async_, sync in re.findall(rf"^\| ([^|]+) \| {number}\| {number}\|$", section, re.M):
        yield name.replace("`", ""), *(None if n == "-" else int(n.replace(",", "")) for n in (async_, sync))


def peers():
    rows = [row for row in rows_of_peers() if "without any exchange" not in row[0]]
    assert len(rows) >= 6, rows
    left, wide, high = 380, 220, 24
    most = max(n for row in rows for n in row[1:] if n)
    parts = []
    for panel, title in enumerate(("async", "sync")):
        x = left + panel * (wide + 70)
        parts.append(f'<text class="head" x="{x}" y="20">steps a second, {title}</text>')
        for i, row in enumerate(rows):
            y, n = 34 + i * high, row[1 + panel]
            if panel == 0:
                parts.append(f'<text class="name" x="{left - 10}" y="{y + 14}">{html.escape(row[0])}</text>')
            if n is None:
                parts.append(f'<text class="note" x="{x}" y="{y + 14}">does not have it</text>')
                continue
            bar = max(1, round(n / most * (wide - 30)))
            kind = "weir" if row[0].startswith("Weir") else "peer"
            parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{bar}" height="{high - 6}" rx="2"/>')
            parts.append(f'<text x="{x + bar + 6}" y="{y + 14}">{n:,}</text>')
    write_svg("peers.svg", left + 2 * wide + 90, 44 + len(rows) * high, STYLE, parts)


def write_svg(name, width, height, style, parts):
    (HERE / name).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
        f"<style>{style}</style>\n" + "\n".join(parts) + "\n</svg>\n", encoding="utf-8")
    print(f"{name}: {width} x {height}")


# ---- a terminal ------------------------------------------------------------------------------------------------------

class Run:
    """`weir ARGS`, whose lines are kept with their times."""

    def __init__(self, args, begin):
        self.lines, self.begin = [], begin
        self.process = subprocess.Popen([WEIR, *args], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append((time.monotonic() - self.begin, line.rstrip()))

    def task(self, name):
        """The process of a task, such as "ps:1"."""
        kind, index = name.split(":")
        for child in subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=True).stdout.split():
            environment = pathlib.Path(f"/proc/{child}/environ").read_text(encoding="utf-8")
            if f'"task":{{"type":"{kind}","index":{index}}}' in environment:
                return int(child)
        sys.exit(f"no process is {name}")

    def wait_for(self, text):
        while not any(text in line for _, line in self.lines):
            if self.process.poll() is not None:
                sys.exit(f"the job ended before it said {text!r}:\n" + "\n".join(line for _, line in self.lines))
            time.sleep(0.02)

    def end(self):
        code = self.process.wait()
        self.reader.join()
        if code:
            sys.exit(f"weir ended with {code}:\n" + "\n".join(line for _, line in self.lines))


def recovery():
    config, flags = "configs/digits_recovery.json", ["--ps=2", "--workers=2"]
    with tempfile.TemporaryDirectory() as folder:
        shas = []
        for kills in ((), ("ps:1", "worker:0", "ps:0")):
            directory = f"checkpoint.directory={folder}/{len(kills)}"
            begin = time.monotonic()
            run = Run(["up", *flags, "--restart", config, "--set", directory, "--set", "train.epochs=900", "--set", "evaluation.every_epochs=0",
                       f"--summary={folder}/s.json"], begin)
            run.wait_for("step")
            for task in kills:
                time.sleep(2)
                os.kill(run.task(task), signal.SIGKILL)
                run.lines.append((time.monotonic() - begin, f"$ kill -9 {task}"))
            run.end()
            shas.append(json.loads(pathlib.Path(folder, "s.json").read_text(encoding="utf-8"))["weights_sha256"])
        if shas[0] != shas[1]:
            sys.exit(f"the weights differ: {shas}")
        # Of the summary the rows that matter here.
        left_out = r" +(test loss|train loss|time|version staleness|lead|traffic|checkpoint) "
        lines = [(at, line) for at, line in run.lines if not re.match(left_out, line)]
        draw_terminal("recovery.svg", f"$ weir up {' '.join(flags)} --restart {config}", lines,
                      f"weights_sha256 of this run and of one without kills: {shas[0][:32]}...")


def draw_terminal(name, command, lines, last):
    shown = [(0.0, command)] + [(at, line if len(line) < 120 else f"{line[:116]}...") for at, line in lines if line] + [(lines[-1][0] + 1, last)]
    total = shown[-1][0] + 6
    style = ("rect { fill: #0d1117; } text { font: 12px ui-monospace, 'DejaVu Sans Mono', monospace; fill: #d1d7e0; white-space: pre; }"
             " .typed { fill: #56d4c0; font-weight: 600; } .last { fill: #ffd479; }")
    parts = [f'<rect width="100%" height="100%" rx="6"/>']
    for i, (at, line) in enumerate(shown):
        share = 100 * at / total
        style += f"\n#l{i} {{ animation: a{i} {total:.1f}s step-end infinite; }} @keyframes a{i} {{ 0% {{ opacity: 0 }} {share:.2f}% {{ opacity: 1 }} }}"
        kind = "typed" if line.startswith("$ ") else "last" if i == len(shown) - 1 else ""
        parts.append(f'<text id="l{i}" class="{kind}" x="12" y="{24 + 17 * i}">{html.escape(line)}</text>')
    write_svg(name, 900, 30 + 17 * len(shown), style, parts)


# ---- the page of ps:0 ------------------------------------------------------------------------------------------------

def page():
    with tempfile.TemporaryDirectory() as folder:
        run = Run(["up", "--ps=2", "--workers=4", "configs/digits.json", "--set", "train.epochs=600", "--set", "debug.worker_delay=0.004",
                   "--http_port=18931"], time.monotonic())
        try:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                time.sleep(1)
                try:
                    with urllib.request.urlopen("http://127.0.0.1:18931/status", timeout=5) as answer:
                        if json.load(answer).get("seconds", 0) > 15:
                            break
                except OSError:
                    pass
            subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1100,900",
                            f"--user-data-dir={folder}", "--virtual-time-budget=4000", f"--screenshot={HERE / 'page.png'}",
                            "http://127.0.0.1:18931/"], check=True, stderr=subprocess.DEVNULL)
        finally:
            run.process.send_signal(signal.SIGINT)
            run.process.wait()
            run.reader.join()


MAKERS = {"peers": peers, "recovery": recovery, "page": page}
wanted = sys.argv[1:] or list(MAKERS)
if unknown := [name for name in wanted if name not in MAKERS]:
    sys.exit(f"no picture {', '.join(unknown)}; there are {', '.join(MAKERS)}")
for name in wanted:
    MAKERS[name]()
