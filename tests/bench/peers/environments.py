"""The training set in plain files, and Python environments, for the contestants. Both lie under CACHE, which git ignores."""
import gzip
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
BIN = ROOT / "bazel-bin"
CACHE = ROOT / ".peers"
FASHION_MNIST = pathlib.Path("/usr/share/datasets/fashion-mnist")
# Headers of the files in IDX format.
IMAGES_HEADER, LABELS_HEADER = 16, 8

# The packages that pip installs for a peer, and their size.
PINNED = {
    "pytorch": (["torch==2.15.0", "numpy==2.4.6"], "3.0 GB (CUDA's libraries, too, which its wheel cannot do without), 5.3 GB on disk"),
    "tensorflow": (["tensorflow-cpu==2.21.0"], "0.4 GB, 1.6 GB on disk"),
    # The last version of MXNet uses functions that later versions of numpy lack.
    "mxnet": (["mxnet==1.9.1", "numpy==1.23.5"], "0.1 GB, 0.3 GB on disk"),
}


class Skipped(Exception):
    """A contestant cannot run here: why, and what to do."""


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return {"cores": os.cpu_count(), "cpu": models[0] if models else "", "load_before": os.getloadavg()[0]}


def weir_package():
    """The environment of a Python program that uses the package weir."""
    return {"PYTHONPATH": str(ROOT / "python"), "WEIR_LIBRARY": str(BIN / "python/capi/libweir.so")}


def data():
    """The folder with the training set as bytes: "images", 784 each, and "labels"."""
    folder = CACHE / "data"
    folder.mkdir(parents=True, exist_ok=True)
    for name, header in [("images", IMAGES_HEADER), ("labels", LABELS_HEADER)]:
        kind = "images-idx3" if name == "images" else "labels-idx1"
        source = FASHION_MNIST / f"train-{kind}-ubyte.gz"
        if not source.exists():
            raise Skipped(f"{source} is missing: install Debian's package dataset-fashion-mnist")
        if not (folder / name).exists():
            part = folder / f"{name}.part"
            part.write_bytes(gzip.decompress(source.read_bytes())[header:])
            part.rename(folder / name)
    return folder


def output_of(command, lines_of_errors=1):
    """Returns what the command prints. Raises Skipped if the command cannot run, or fails."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Skipped(f"'{command[0]}' cannot be run: {error.strerror}") from error
    if result.returncode != 0:
        last = "\n    ".join(result.stderr.strip().splitlines()[-lines_of_errors:])
        raise Skipped(f"'{' '.join(command)}' failed: {last}")
    return result.stdout.strip()


def python_for(peer, given, install):
    """Returns the Python that has `peer`: `given` by the user, or that of an environment under CACHE, which is made if `install`."""
    if given:
        return given
    pins, size = PINNED[peer]
    folder = CACHE / peer
    python, installed = folder / "bin" / "python", folder / "installed"
    if installed.exists() and installed.read_text(encoding="utf-8").split() == pins:
        return str(python)
    if not install:
        raise Skipped(f"{' '.join(pins)} is not installed: --install={peer} downloads {size}; or --{peer}=PYTHON for a Python "
                      "that has it")
    print(f"peers: installing {' '.join(pins)}", file=sys.stderr)
    for command in [[sys.executable, "-m", "venv", "--clear", str(folder)],
                    [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir", *pins]]:
        result = subprocess.run(command, stdout=sys.stderr, check=False)
        if result.returncode != 0:
            raise Skipped(f"could not install {' '.join(pins)}: '{' '.join(command)}' failed, see above")
    installed.write_text(" ".join(pins), encoding="utf-8")
    return str(python)
