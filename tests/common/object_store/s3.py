"""s3_server.py as a process with a bucket in it; for tests in Python."""
import os
import pathlib
import subprocess
import time

PROGRAM = pathlib.Path(__file__).resolve().parent / "s3_server.py"
BUCKET = "weir"
LIMIT_SECONDS = 120


class Server:
    """Runs until close(). `variables` is the environment of who uses it. address: where it listens. folder: for its log."""

    def __init__(self, folder, address="127.0.0.1"):
        # `./dev test` makes this Python, and sets the variable.
        python = os.environ["WEIR_S3_PYTHON"]
        listens, log = folder / "s3-port", folder / "s3.log"
        with open(log, "wb") as file:
            self._process = subprocess.Popen([python, "-B", PROGRAM, listens, BUCKET, address], stdout=file, stderr=file)
        end = time.monotonic() + LIMIT_SECONDS
        while not listens.exists():
            if self._process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"no S3 server in {LIMIT_SECONDS} s: {log.read_text(encoding='utf-8')}")
            time.sleep(0.02)
        port = int(listens.read_text(encoding="utf-8"))
        listens.unlink()
        self.variables = {"AWS_ACCESS_KEY_ID": "weir-test", "AWS_SECRET_ACCESS_KEY": "weir-secret/+=", "AWS_REGION": "us-east-1",
                          "AWS_ENDPOINT_URL_S3": f"http://{address}:{port}"}

    def close(self):
        self._process.kill()
        self._process.wait()
