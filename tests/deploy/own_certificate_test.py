#!/usr/bin/python3
"""The sidecar of the component mtls: a task gets its own certificate and key, both at once, again when they change, and no others."""
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

SCRIPT = pathlib.Path("deploy/kustomize/components/mtls/own_certificate.sh").resolve()
LIMIT_SECONDS = 60
EXIT_CONFIG = 78
WORKER = {"WEIR_ROLE": "worker", "JOB_COMPLETION_INDEX": "3", "POD_NAME": "weir-worker-3-x7k2p"}
SERVER = {"WEIR_ROLE": "ps", "POD_NAME": "weir-ps-3"}
# Beside a chief, which is worker 0.
WORKER_OF_TFJOB = {"WEIR_ROLE": "worker", "WEIR_FIRST_RANK": "1", "POD_NAME": "weir-worker-2"}


class OwnCertificate(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.secret, self.own = pathlib.Path(folder.name) / "secret", pathlib.Path(folder.name) / "own"
        self.secret.mkdir()
        self.own.mkdir()
        self.current = self.own / "current"

    def write(self, what, tasks=("ps-3", "worker-2", "worker-3")):
        for task in tasks:
            for end in "pem", "key":
                path = self.secret / f"{task}.{end}"
                path.with_suffix(".new").write_text(f"{what} {path.name}", encoding="utf-8")
                path.with_suffix(".new").rename(path)

    def start(self, variables):
        process = subprocess.Popen(["sh", SCRIPT, self.secret, self.own], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   env={"PATH": os.environ["PATH"], "WEIR_EVERY_SECONDS": "0.1", **variables})
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def wait_until(self, holds, process):
        end = time.monotonic() + LIMIT_SECONDS
        while not holds():
            self.assertIsNone(process.poll(), "it has ended")
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def pair(self):
        folder = self.current.resolve()
        try:
            return (folder / "tls.crt").read_text(encoding="utf-8"), (folder / "tls.key").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def test_a_task_gets_its_own(self):
        for variables, task in (WORKER, "worker-3"), (SERVER, "ps-3"), (WORKER_OF_TFJOB, "worker-3"):
            with self.subTest(task):
                self.write("a")
                process = self.start(variables)
                self.wait_until(lambda task=task: self.pair() == (f"a {task}.pem", f"a {task}.key"), process)
                self.assertEqual((self.current / "tls.key").stat().st_mode & 0o077, 0)
                self.assertEqual(sorted(path.name for path in self.current.iterdir()), ["tls.crt", "tls.key"])
                process.send_signal(signal.SIGTERM)
                self.assertEqual(process.wait(LIMIT_SECONDS), 0)

    def test_what_changes_comes_at_once(self):
        self.write("a0")
        process = self.start(WORKER)
        self.wait_until(lambda: self.pair() == ("a0 worker-3.pem", "a0 worker-3.key"), process)
        before = self.current.resolve()
        self.write("b")
        self.wait_until(lambda: self.pair() == ("b worker-3.pem", "b worker-3.key"), process)
        self.assertNotEqual(self.current.resolve(), before, "a file was changed in place")
        self.wait_until(lambda: [path.name for path in self.own.glob("taken.*")] == [self.current.resolve().name], process)

    def test_a_start_after_an_end_in_the_middle(self):
        self.write("a")
        (self.own / "taken.half").mkdir()
        (self.own / "next").symlink_to("taken.half")
        process = self.start(WORKER)
        self.wait_until(lambda: self.pair() == ("a worker-3.pem", "a worker-3.key"), process)
        self.wait_until(lambda: not (self.own / "taken.half").exists(), process)

    def test_a_task_without_a_certificate(self):
        self.write("a", tasks=["worker-2"])
        process = self.start(WORKER)
        self.assertEqual(process.wait(LIMIT_SECONDS), EXIT_CONFIG)
        self.assertIn(f"there is no worker-3.pem that can be read in {self.secret}", process.stdout.read())
        self.assertEqual(list(self.own.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
