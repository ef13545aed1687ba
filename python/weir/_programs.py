"""The programs that the wheel brings, as commands."""
import os
import pathlib
import signal
import sys


def _become(name: str) -> None:
    # Python ignores these for itself, and what is ignored stays so in the program and in its tasks.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    program = pathlib.Path(__file__).resolve().parent / "bin" / name
    os.execv(program, [str(program), *sys.argv[1:]])


def weir() -> None:
    _become("weir")


def ps_server() -> None:
    _become("ps_server")


def worker() -> None:
    _become("worker")
