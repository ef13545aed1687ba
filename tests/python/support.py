"""What the tests of Python share: the package as it was built, jobs of real processes, and folders."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path.cwd()  # of the runfiles
PYTHON = "/usr/bin/python3"
LIMIT_SECONDS = 120  # for anything

os.environ["WEIR_LIBRARY"] = str(ROOT / "python/capi/libweir.so")
os.environ["PYTHONPATH"] = str(ROOT / "python")
for name in ("TF_CONFIG", "WEIR_SET", "WEIR_TOKEN_FILE", "WEIR_TLS_CA", "WEIR_TLS_CERTIFICATE", "WEIR_TLS_KEY"):
    os.environ.pop(name, None)
sys.path.insert(0, str(ROOT / "python"))


def folder():
    return tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))


def write_job(path, **fields):
    pathlib.Path(path).write_text(json.dumps(fields), encoding="utf-8")
    return str(path)


def up(job, program, *flags):
    """The command that runs `program` as every worker of the job."""
    return [str(ROOT / "cli/weir"), "up", *flags, str(job), "--", PYTHON, *map(str, program)]


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False, **options)


def server_of(parent, index):
    """The process of ps:INDEX among the children of `weir up`."""
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if f"\nPPid:\t{parent}\n" not in (path / "status").read_text():
                continue
            if f'"task":{{"type":"ps","index":{index}}}' in (path / "environ").read_text():
                return int(path.name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    raise AssertionError(f"ps:{index} does not run")
