"""An S3 server (moto) that pods reach at the gateway of their network."""
import os
import pathlib
import subprocess

from job import Skipped, wait_until
from network import GATEWAY

SERVER = pathlib.Path(__file__).resolve().parents[1] / "common/object_store/s3_server.py"
BUCKET = "weir-checkpoints"


class ObjectStorage:
    """Runs until close(). Holds one bucket, BUCKET."""

    def __init__(self, folder):
        python = os.environ.get("WEIR_S3_PYTHON", "")
        if not pathlib.Path(python).exists():
            raise Skipped(f"WEIR_S3_PYTHON='{python}' is not the Python that has moto; `./dev hosts-test` installs it from PyPI")
        listens = folder / "s3-port"
        self._log = folder / "s3.log"
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen([python, "-B", SERVER, listens, BUCKET, GATEWAY], stdout=log, stderr=log)
        wait_until(lambda: listens.exists() or self._process.poll() is not None, "moto listens")
        if not listens.exists():
            raise RuntimeError(f"moto: {self._log.read_text(encoding='utf-8')}")
        port = int(listens.read_text(encoding="ascii"))
        listens.unlink()
        # Keys are those of s3_server.py.
        self.environment = {"AWS_ENDPOINT_URL_S3": f"http://{GATEWAY}:{port}", "AWS_REGION": "us-east-1",
                            "AWS_ACCESS_KEY_ID": "weir-test", "AWS_SECRET_ACCESS_KEY": "weir-secret/+="}

    def close(self):
        self._process.kill()
        self._process.wait()
