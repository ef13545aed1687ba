#!/usr/bin/python3
"""The package's types: mypy finds no fault in them, and a user's program that uses them (typed_program.py) has just the errors that
are marked there."""
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path("WORKSPACE").resolve().parent
MYPY, WITH_JAX = ROOT / ".venv/types/bin/mypy", ROOT / ".venv/jax/bin/python"


def main():
    for program in (MYPY, WITH_JAX):
        if not program.exists():
            sys.exit(f"{program} is missing; `./dev test` makes it, with Debian's python3-venv and packages from PyPI")
    paths = (path.relative_to(ROOT / "python").with_suffix("") for path in (ROOT / "python/weir").rglob("*.py"))
    modules = {".".join(path.parts).replace(".__init__", "") for path in paths} - {"weir.jax"}
    failed = False
    # NumPy and PyTorch are Debian's, as for the other tests; JAX is PyPI's.
    for python, checked in (("/usr/bin/python3", [*sorted(modules), "typed_program"]), (WITH_JAX, ["weir.jax"])):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as cache:
            done = subprocess.run(
                [MYPY, "--strict", f"--python-executable={python}", f"--cache-dir={cache}", *(f"-m{name}" for name in checked)],
                env=os.environ | {"MYPYPATH": f"{ROOT / 'python'}:{ROOT / 'tests/python'}"}, check=False)
        failed |= done.returncode != 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
