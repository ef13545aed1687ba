"""A task of a job as a Ray actor."""
from __future__ import annotations

import collections
import ctypes
import os
import pathlib
import signal
import socket
import subprocess
import sys
from typing import Any, Callable

import ray

from .. import __version__
from .._library import program as find_program
from ..errors import ConfigError

# Lines of a process that an error quotes.
_QUOTED = 10

# The system sends the process this signal when its parent dies.
_PR_SET_PDEATHSIG = 1
_LAUNCH = f"""
import ctypes, os, signal, sys
for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these for itself
    signal.signal(number, signal.SIG_DFL)
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def _node() -> str:
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


class WeirTask:
    """One task of a job. Its class has this name in Ray's logs and lists."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._kept: list[Any] = []

    def begin(self) -> tuple[str, str]:
        """The version of Weir on this node, and an address there that no other process gets while this actor lives. A server may
        listen there: it sets SO_REUSEADDR, too."""
        # An actor whose raylet has died would finish its call first, though its task is started elsewhere meanwhile.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        ip = _node()
        kept = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind((ip, 0))
        self._kept.append(kept)
        return __version__, f"[{ip}]:{kept.getsockname()[1]}" if ":" in ip else f"{ip}:{kept.getsockname()[1]}"

    def call(self, function: Callable[[dict[str, Any]], Any], config: dict[str, Any], variables: dict[str, str],
             files: dict[str, str]) -> Any:
        """Runs a worker's function in this process."""
        os.environ.update(self._environment(variables, files))
        return function(config)

    def execute(self, command: list[str], variables: dict[str, str], files: dict[str, str]) -> tuple[int, list[str]]:
        """Runs a worker's script; its exit code as a shell reports it, and its last lines."""
        if not os.path.exists(command[0]):
            raise ConfigError(f"{_node()} has no {os.path.abspath(command[0])}: give ray.init() a runtime_env with "
                              "the working_dir that has the script, or put it there on every node")
        return self._run([sys.executable, *command], self._environment({"PYTHONUNBUFFERED": "1", **variables}, files), lambda line: True)

    def serve(self, config: str, variables: dict[str, str], files: dict[str, str]) -> tuple[int, list[str], str]:
        """Runs a server, and returns the summary, too. Only its warnings and errors are shown."""
        summary = self._in_memory("")
        code, lines = self._run(
            [find_program("ps_server"), f"--config={self._in_memory(config)}", f"--bind={self._kept[0].getsockname()[0]}",
             f"--summary={summary}", *([] if "WEIR_TLS_CA" in files else ["--insecure_plaintext"])],
            self._environment(variables, files), lambda line: line[24:27] != " I ")
        return code, lines, pathlib.Path(summary).read_text()

    def stop(self) -> None:
        """SIGTERM for the process."""
        if self._process is not None:
            self._process.terminate()

    def _in_memory(self, text: str) -> str:
        """A file of this process's user alone, which goes with this process."""
        descriptor = os.memfd_create("weir")
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, text.encode())
        return f"/proc/{os.getpid()}/fd/{descriptor}"

    def _environment(self, variables: dict[str, str], files: dict[str, str]) -> dict[str, str]:
        # Without TLS, empty: tasks do not inherit what the node names.
        none = dict.fromkeys(("WEIR_TLS_CA", "WEIR_TLS_CERTIFICATE", "WEIR_TLS_KEY"), "")
        return {**none, **variables, **{name: self._in_memory(text) for name, text in files.items()}}

    def _run(self, command: list[str], variables: dict[str, str], shows: Callable[[str], bool]) -> tuple[int, list[str]]:
        # The child dies with the thread that waits for it here, and so with this actor, however that ends.
        self._process = subprocess.Popen([sys.executable, "-ISc", _LAUNCH, str(os.getpid()), *command], env={**os.environ, **variables},
                                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                         errors="replace")
        last: collections.deque[str] = collections.deque(maxlen=_QUOTED)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            last.append(line.rstrip())
            if shows(line):
                print(last[-1], file=sys.stderr, flush=True)
        code = self._process.wait()
        return 128 - code if code < 0 else code, list(last)
