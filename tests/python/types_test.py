#!/usr/bin/python3
"""The package's types: mypy finds no fault in them, and a user's program that uses them (typed_program.py) has just the errors that
are marked there."""
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path("WORKSPACE").resolve().parent
MYPY = ROOT / ".venv/types/bin/mypy"


def main():
    if not MYPY.exists():
        sys.exit(f"{MYPY} is missing; `./dev test` makes it, with Debian's python3-venv and packages from PyPI")
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as cache:
        # NumPy and PyTorch are Debian's, as for the other tests.
        done = subprocess.run(
            [MYPY, "--strict", "--python-executable=/usr/bin/python3", f"--cache-dir={cache}", "-p", "weir", "-p", "typed_program"],
            env=os.environ | {"MYPYPATH": f"{ROOT / 'python'}:{ROOT / 'tests/python'}"}, check=False)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
