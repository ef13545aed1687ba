"""The Python environment of these tests, which `./dev test` makes: kubectl, the schemas of Kubernetes, a parser of PromQL."""
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "tests/deploy/requirements.txt"
FOLDER = ROOT / ".venv/deploy"


def enter():
    """Runs this program again with the environment's Python, unless it is that already."""
    installed = FOLDER / "requirements.txt"
    if not installed.exists() or installed.read_bytes() != REQUIREMENTS.read_bytes():
        sys.exit(f"{FOLDER.relative_to(ROOT)} is not what {REQUIREMENTS.relative_to(ROOT)} asks for: `./dev test` installs that, "
                 "with Debian's python3-venv and packages from PyPI")
    if not pathlib.Path(sys.prefix).samefile(FOLDER):
        python = FOLDER / "bin/python"
        os.execv(python, [python, "-B", *sys.argv])
