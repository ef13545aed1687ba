#!/usr/bin/python3
"""The package's types: mypy and pyright find no fault in them, and a user's program that uses them (typed_program.py) has
just the errors that are marked there."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path("WORKSPACE").resolve().parent
PROGRAM = pathlib.Path("tests/python/typed_program.py")
PACKAGE = {path.relative_to(ROOT) for path in (ROOT / "python/weir").rglob("*.py")}
MYPY, PYRIGHT = ROOT / ".venv/types/bin/mypy", ROOT / ".venv/types/bin/pyright"
# The modules that need a package from PyPI, and the Python that has it.
WITH = {name: ROOT / f".venv/{name}/bin/python" for name in ("jax", "ray")}


def pyright(python, files):
    """Whether pyright finds no fault in these. Its Node is a package as it
    is; nothing is downloaded."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
        # It takes files from below its configuration alone. A module needs its package beside it.
        project = pathlib.Path(folder)
        for path in files | PACKAGE:
            (project / path).parent.mkdir(parents=True, exist_ok=True)
            (project / path).symlink_to(ROOT / path)
        (project / "pyrightconfig.json").write_text(json.dumps({
            "include": [str(path) for path in files], "extraPaths": [str(ROOT / "python")], "typeCheckingMode": "standard"}),
            encoding="utf-8")
        done = subprocess.run([PYRIGHT, f"--project={project}", f"--pythonpath={python}"], check=False,
                              env=os.environ | {"HOME": folder, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"})
    return done.returncode == 0


def main():
    for program in (MYPY, PYRIGHT, *WITH.values()):
        if not program.exists():
            sys.exit(f"{program} is missing; `./dev test` makes it, with Debian's python3-venv and packages from PyPI")
    paths = (path.relative_to(ROOT / "python").with_suffix("") for path in (ROOT / "python/weir").rglob("*.py"))
    modules = {".".join(path.parts).replace(".__init__", "") for path in paths}
    modules_with = {python: {m for m in modules if f"{m}.".startswith(f"weir.{name}.")} for name, python in WITH.items()}
    files_with = {python: {p for p in PACKAGE if str(p.with_suffix("")).startswith(f"python/weir/{name}")} for name, python in WITH.items()}
    failed = False
    # NumPy and PyTorch are Debian's, as for the other tests.
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as cache:
        for python, checked in (("/usr/bin/python3", [*sorted(modules.difference(*modules_with.values())), "typed_program"]), *modules_with.items()):
            done = subprocess.run(
                [MYPY, "--strict", f"--python-executable={python}", f"--cache-dir={cache}", *(f"-m{name}" for name in checked)],
                env=os.environ | {"MYPYPATH": f"{ROOT / 'python'}:{ROOT / 'tests/python'}"}, check=False)
            failed |= done.returncode != 0
    for python, files in (("/usr/bin/python3", PACKAGE.difference(*files_with.values()) | {PROGRAM}), *files_with.items()):
        failed |= not pyright(python, files)
    sys.exit(failed)


if __name__ == "__main__":
    main()
