"""An S3 server (moto) that pods reach at the gateway of their network."""
import os
import pathlib
import sys

from job import Skipped
from network import GATEWAY

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "common/object_store"))
import s3  # pylint: disable=wrong-import-position

BUCKET = s3.BUCKET


def start_storage(folder):
    python = os.environ.get("WEIR_S3_PYTHON", "")
    if not pathlib.Path(python).exists():
        raise Skipped(f"WEIR_S3_PYTHON='{python}' is not the Python that has moto; `./dev hosts-test` installs it from PyPI")
    return s3.Server(folder, GATEWAY)
