#!/usr/bin/python3
"""Checks docs/flags.md: it is what tools/flags_reference.py makes of the programs' --help."""
import os
import pathlib
import subprocess

ROOT = pathlib.Path(os.path.realpath("WORKSPACE")).parent
subprocess.run(["/usr/bin/python3", ROOT / "tools/flags_reference.py", "--check", f"--bin={pathlib.Path.cwd()}"], check=True)
