"""Runs a command and shows how far it is, from its own lines "[step / steps] what" on standard error, as Bazel prints them.

usage: progress.py [--quiet] TITLE COMMAND [ARG...]

On a terminal one line is rewritten; in a log a line comes every 30 s. What else the command prints passes unchanged, each stream to
its own; with --quiet it is dropped. Exits as the command does.
"""
import os
import re
import selectors
import signal
import subprocess
import sys
import time

STEP = re.compile(r"\[([\d,]+) / ([\d,]+)\] ?([^;]*).*")
# Bazel's lines before it knows the number of steps, and the line that it prints twice after the last step.
BESIDE = re.compile(r"((?:Loading|Analyzing)\b.*|currently loading:.*|Fetching .*)|INFO: Build completed successfully,.*")
COLOURS = re.compile(r"\x1b\[[\d;]*[mK]")
LOG_SECONDS = 30


def span(seconds):
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"


class Display:
    """The one line about where the command is."""

    def __init__(self, title, write, columns=None, clock=time.monotonic):
        """columns: a function that says how wide the terminal is; None for a log."""
        self.title, self.write, self.columns, self.clock = title, write, columns, clock
        self.start = self.logged = clock()
        self.step = self.what = self.shown = ""
        self.steps = self.grows = None

    def take(self, line):
        """Whether `line` was about progress, and so is not to pass."""
        plain = COLOURS.sub("", line).strip()
        if match := STEP.fullmatch(plain):
            # Bazel counts the steps that it has found so far: such a total says nothing.
            self.grows = self.grows or self.steps not in (None, match[2])
            self.steps, self.what = match[2], match[3]
            self.step = f"step {match[1]}, " if self.grows else f"step {match[1]} of {match[2]}, "
        elif match := BESIDE.fullmatch(plain):
            self.what = match[1] or self.what
        return bool(match)

    def show(self):
        now = self.clock()
        text = f"dev: {self.title}: {self.step}{span(now - self.start)}"
        if self.columns:
            text = (f"{text}: {self.what}" if self.what else text)[:self.columns() - 1]
            if text != self.shown:
                self.write(f"\r{text}\x1b[K")
                self.shown = text
        elif now - self.logged >= LOG_SECONDS:
            self.write(text + "\n")
            self.logged = now

    def clear(self):
        if self.shown:
            self.write("\r\x1b[K")
            self.shown = ""


def follow(command, display, quiet):
    """Runs `command` to its end. Returns its exit code as a shell has it."""
    # Ctrl-C reaches the command too, which then ends in its own way.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    ways = {child.stdout: sys.stdout.buffer, child.stderr: sys.stderr.buffer}
    begun = b""  # the unfinished last line of standard error
    with selectors.DefaultSelector() as selector:
        for pipe in ways:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select(timeout=1):
                passing = data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                if key.fileobj is child.stderr:
                    lines = (begun + data).splitlines(keepends=True)
                    begun = lines.pop() if data and lines and not lines[-1].endswith((b"\n", b"\r")) else b""
                    passing = b"".join(line for line in lines if not display.take(line.decode(errors="replace")))
                if passing and not quiet:
                    display.clear()
                    ways[key.fileobj].write(passing)
                    ways[key.fileobj].flush()
            display.show()
    display.clear()
    code = child.wait()
    return code if code >= 0 else 128 - code


def write(text):
    sys.stderr.write(text)
    sys.stderr.flush()


def main():
    quiet = sys.argv[1:2] == ["--quiet"]
    title, *command = sys.argv[2 if quiet else 1:]
    columns = (lambda: os.get_terminal_size(2).columns or 80) if os.isatty(2) else None
    sys.exit(follow(command, Display(title, write, columns), quiet))


if __name__ == "__main__":
    main()
