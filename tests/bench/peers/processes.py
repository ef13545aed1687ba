"""Runs the processes of one contestant and collects the lines of JSON that they print."""
import json
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field

# One compute thread a process.
THREADS = {name: "1" for name in ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"]}
# Processes that only serve have this long to end after the workers; some never do.
SECONDS_TO_END = 3


@dataclass
class Process:
    name: str
    command: list
    environment: dict = field(default_factory=dict)
    serves: bool = False


class Failed(Exception):
    """A contestant's process failed or ran too long."""


def tail_of(file):
    file.seek(0)
    return "\n    ".join(file.read().decode(errors="replace").strip().splitlines()[-8:])


def end(process):
    """Kills the process and all that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def run(processes, limit):
    """Returns the lines of JSON that all processes print. Raises Failed if one fails, or if they take more than `limit` seconds."""
    running = []
    try:
        for process in processes:
            out, errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()
            started = subprocess.Popen(process.command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors,
                                       env={**os.environ, **THREADS, **process.environment}, start_new_session=True)
            running.append((process, started, out, errors))
        deadline = time.monotonic() + limit
        while True:
            for process, started, _, errors in running:
                if started.poll() not in (None, 0):
                    raise Failed(f"{process.name} exited with {started.returncode}:\n    {tail_of(errors)}")
            left = [process for process, started, _, _ in running if started.poll() is None]
            if not left:
                break
            if all(process.serves for process in left):
                deadline = min(deadline, time.monotonic() + SECONDS_TO_END)
            if time.monotonic() > deadline:
                if all(process.serves for process in left):
                    break
                raise Failed(f"{left[0].name} is not done after {limit:.0f} s:\n    {tail_of(running[-1][3])}")
            time.sleep(0.05)
        lines = []
        for _, _, out, _ in running:
            out.seek(0)
            lines += [json.loads(line) for line in out.read().decode().splitlines() if line.startswith("{")]
        return lines
    finally:
        for _, started, out, errors in running:
            end(started)
            out.close()
            errors.close()
