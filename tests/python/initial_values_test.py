#!/usr/bin/python3
"""The initial values of a job in a cluster are those that one worker has given: all of them, whoever dies meanwhile."""
import os
import pathlib
import signal
import subprocess
import time
import unittest

import numpy as np
import support

GIVE = support.ROOT / "tests/python/give.py"


class InitialValues(unittest.TestCase):
    def setUp(self):
        temporary = support.folder()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def job(self, mode, **more):
        more_of = {"sync": {"parts": 2}, "bounded": {"staleness": 1}, "async": {}}
        return support.write_job(
            self.folder / "job.json", data={"batch_size": 4}, consistency={"mode": mode, **more_of[mode]},
            optimizer={"type": "sgd", "learning_rate": 1}, server={"min_shard_kib": 0},
            cluster={"server_wait_seconds": 60}, **more)

    def given(self, done):
        """The value, which is the same everywhere."""
        self.assertEqual(done.returncode, 0, done.stderr)
        files = list(self.folder.glob("weights-*.npz"))
        self.assertGreaterEqual(len(files), 1)
        values = {float(v) for path in files for array in np.load(path).values() for v in np.unique(array)}
        self.assertEqual(len(values), 1, values)
        for path in files:
            path.unlink()
        return values.pop()

    def test_the_first_worker_gives_them(self):
        for mode in ("sync", "bounded", "async"):
            for servers in (1, 3):
                with self.subTest(mode=mode, servers=servers):
                    up = support.up(self.job(mode), [GIVE, self.folder / "job.json", self.folder], f"--ps={servers}", "--workers=2")
                    self.assertEqual(self.given(support.run(up)), 1)

    def test_it_dies_while_it_uploads(self):
        """Another one uploads all, or the same one when it is started again; or it had just done."""
        for mode in ("sync", "async"):
            with self.subTest(mode=mode):
                (self.folder / "begun").unlink(missing_ok=True)
                job = self.job(mode, wire={"transport": "tcp"})
                done = support.run(support.up(job, [GIVE, job, self.folder, "--elements=4000000", "--die"], "--ps=2", "--workers=2",
                                              "--restart"))
                self.assertIn("started again", done.stderr)
                self.assertIn(self.given(done), (1, 2))

    def test_a_server_dies_before_the_first_checkpoint(self):
        job = self.job("sync", checkpoint={"directory": "checkpoints"}, wire={"transport": "tcp"})
        up = subprocess.Popen(support.up(job, [GIVE, job, self.folder, "--elements=4000000"], "--ps=2", "--workers=2",
                                         "--restart"), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(up.kill)
        deadline = time.monotonic() + support.LIMIT_SECONDS
        while not (self.folder / "begun").exists():
            self.assertIsNone(up.poll(), up.stderr.read() if up.poll() is not None else "")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.001)
        os.kill(support.server_of(up.pid, 1), signal.SIGKILL)
        out, error = up.communicate(timeout=support.LIMIT_SECONDS)
        self.assertIn("ps:1 was killed", error)
        self.assertEqual(self.given(subprocess.CompletedProcess(up.args, up.returncode, out, error)), 1)


if __name__ == "__main__":
    unittest.main()
