"""The S3 server of tests/common/object_store, on loopback, with a bucket in it."""
import os
import pathlib
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUCKET = "weir"
LIMIT_SECONDS = 120
MAKE_BUCKET = "import boto3, sys; boto3.client('s3', endpoint_url=sys.argv[1]).create_bucket(Bucket=sys.argv[2])"


class Server:
    """`variables` is the environment of who uses it."""

    def __init__(self, folder):
        # `./dev test` makes this Python, and sets the variable.
        python = os.environ["WEIR_S3_PYTHON"]
        ports = folder / "ports"
        self.process = subprocess.Popen([python, ROOT / "tests/common/object_store/s3_server.py", ports], stderr=subprocess.DEVNULL)
        end = time.monotonic() + LIMIT_SECONDS
        while not ports.exists() or not ports.read_text(encoding="utf-8"):
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"no S3 server in {LIMIT_SECONDS} s")
            time.sleep(0.02)
        self.variables = {"AWS_ACCESS_KEY_ID": "weir-test", "AWS_SECRET_ACCESS_KEY": "weir-secret/+=", "AWS_REGION": "us-east-1",
                          "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{ports.read_text(encoding='utf-8').split()[0]}"}
        command = [python, "-c", MAKE_BUCKET, self.variables["AWS_ENDPOINT_URL_S3"], BUCKET]
        subprocess.run(command, check=True, timeout=LIMIT_SECONDS, env={**os.environ, **self.variables})

    def close(self):
        self.process.kill()
        self.process.wait()
