"""The image of a program in Python, for pods that run as processes of this host: this host's Python, with the package as it was
built here, and the files that the image has in its working folder."""
import os
import pathlib
import shutil

PYTHON = pathlib.Path("/usr/bin/python3")
RUNFILES = pathlib.Path.cwd()


def make_image(folder, root, *files):
    """The environment of the image (emulator.Cluster). `files`: of the tree `root`, copied into `folder`, where pods run."""
    programs = folder / "image"
    programs.mkdir()
    (programs / "python").symlink_to(PYTHON)
    for file in files:
        shutil.copy(root / file, folder)
    return {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(root / "python"), "PYTHONDONTWRITEBYTECODE": "1",
            "WEIR_LIBRARY": str(RUNFILES / "python/capi/libweir.so")}
