#!/usr/bin/python3
"""Makes the pictures of the pages: docs/pictures/make.py [peers] [modes] [recovery] [page]; without a name, all.

  peers     peers.svg: the table "Beside its peers" of docs/benchmarks/results.md as bars
  modes     modes.svg: who computes and who waits in the three modes, from a real run of each with a slow worker
  recovery  recovery.svg: a terminal in which servers and workers of configs/digits_recovery.json are killed, from a real run
  page      page.png: the page of ps:0 in Chromium (Debian's package chromium), from a real run

All but peers run bazel-bin/cli/weir, and take about half a minute each.
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


# ---- time lines ------------------------------------------------------------------------------------------------------

# A worker whose gradients take this long, in seconds; notes when it computes.
WORKER = """
import json, os, pathlib, time
import weir
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
spans = []
with weir.Client("job.json", {"w": (8,)}, 10**6) as client:
    for step in client.steps({}):
        begin = time.monotonic()
        time.sleep(0.12 if index == 2 else 0.04)
        step.gradient["w"][:] = 0
        spans.append((begin, time.monotonic()))
        step.push(loss=1)
pathlib.Path(f"spans-{index}").write_text(json.dumps(spans))
"""


def modes():
    lane, left, seconds, scale = 22, 110, 1.2, 560
    parts = []
    for panel, (title, consistency) in enumerate((
            ("sync: all wait for the slowest", {"mode": "sync"}),
            ("bounded, staleness 2: ahead by two clocks at most", {"mode": "bounded", "staleness": 2}),
            ("async: no worker waits for another", {"mode": "async"}))):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "train.py").write_text(WORKER, encoding="utf-8")
            (folder / "job.json").write_text(json.dumps({"consistency": consistency, "train": {"steps": 40}, "data": {"batch_size": 1}}),
                                             encoding="utf-8")
            subprocess.run([WEIR, "up", "--ps=1", "--workers=3", "job.json", "--", sys.executable, "train.py"], cwd=folder, check=True,
                           env={**os.environ, "PYTHONPATH": str(ROOT / "python")}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            lanes = [json.loads((folder / f"spans-{i}").read_text(encoding="utf-8")) for i in range(3)]
        origin = max(spans[0][0] for spans in lanes) + 0.1  # all take part by then
        top = 24 + panel * (3 * lane + 44)
        parts.append(f'<text class="head" x="{left}" y="{top - 8}">{title}</text>')
        for i, spans in enumerate(lanes):
            y = top + i * lane
            parts.append(f'<text class="name" x="{left - 10}" y="{y + 13}">worker {i}{", slow" if i == 2 else ""}</text>')
            parts.append(f'<rect class="wait" x="{left}" y="{y + 7}" width="{scale}" height="2"/>')
            for begin, end in spans:
                a, b = max(0.0, begin - origin), min(seconds, end - origin)
                if a < b:
                    parts.append(f'<rect class="weir" x="{left + a / seconds * scale:.1f}" y="{y}" '
                                 f'width="{(b - a) / seconds * scale:.1f}" height="{lane - 6}" rx="2"/>')
    bottom = 24 + 3 * (3 * lane + 44) - 30
    parts.append(f'<text class="note" x="{left}" y="{bottom}">{seconds:g} seconds of a run of each; a bar is a gradient that is computed, a line is '
                 "waiting, pushing and pulling</text>")
    write_svg("modes.svg", left + scale + 20, bottom + 12, STYLE + ".wait { fill: #d0a23a; }", parts)


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


MAKERS = {"peers": peers, "modes": modes, "recovery": recovery, "page": page}
wanted = sys.argv[1:] or list(MAKERS)
if unknown := [name for name in wanted if name not in MAKERS]:
    sys.exit(f"no picture {', '.join(unknown)}; there are {', '.join(MAKERS)}")
for name in wanted:
    MAKERS[name]()
