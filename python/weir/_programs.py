"""The programs that the wheel brings, as commands."""
import os
import pathlib
import sys


def _become(name: str) -> None:
    program = pathlib.Path(__file__).resolve().parent / "bin" / name
    os.execv(program, [str(program), *sys.argv[1:]])


def weir() -> None:
    _become("weir")


def ps_server() -> None:
    _become("ps_server")


def worker() -> None:
    _become("worker")
