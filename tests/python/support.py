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
# OpenBLAS's threads, which torch.set_num_threads() does not reach: on some CPUs sums depend on them, and `weir up` gives several
# workers other numbers than a serial loop has. Before torch is loaded.
os.environ["OMP_NUM_THREADS"] = "1"
for name in ("TF_CONFIG", "WEIR_SET", "WEIR_TOKEN_FILE", "WEIR_TLS_CA", "WEIR_TLS_CERTIFICATE", "WEIR_TLS_KEY"):
    os.environ.pop(name, None)
sys.path.insert(0, str(ROOT / "python"))


def run_with(variable):
    """Goes on in the Python that the environment names, which has packages from PyPI; PYTHON then means it, too."""
    global PYTHON
    PYTHON = os.environ.get(variable) or "none"
    if not os.path.exists(PYTHON):
        sys.exit(f"{variable}: {PYTHON} is missing; `./dev test` makes it, with packages from PyPI")
    if not os.path.samefile(sys.prefix, pathlib.Path(PYTHON).parent.parent):
        os.execv(PYTHON, [PYTHON, *sys.argv])


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
