"""s3_server.py as a process, on loopback, with a bucket in it; for tests in Python."""
import os
import pathlib
import subprocess
import time

PROGRAM = pathlib.Path(__file__).resolve().parent / "s3_server.py"
BUCKET = "weir"
LIMIT_SECONDS = 120


class Server:
    """`variables` is the environment of who uses it."""

    def __init__(self, folder):
        # `./dev test` makes this Python, and sets the variable.
        python = os.environ["WEIR_S3_PYTHON"]
        port = folder / "port"
        self.process = subprocess.Popen([python, PROGRAM, port, BUCKET], stderr=subprocess.DEVNULL)
        end = time.monotonic() + LIMIT_SECONDS
        while not port.exists():
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"no S3 server in {LIMIT_SECONDS} s")
            time.sleep(0.02)
        self.variables = {"AWS_ACCESS_KEY_ID": "weir-test", "AWS_SECRET_ACCESS_KEY": "weir-secret/+=", "AWS_REGION": "us-east-1",
                          "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{int(port.read_text(encoding='utf-8'))}"}

    def close(self):
        self.process.kill()
        self.process.wait()
