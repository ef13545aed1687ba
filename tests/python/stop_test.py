#!/usr/bin/python3
"""A program that ends its job before all of its examples are done."""
import json
import os
import pathlib
import signal
import subprocess
import textwrap
import unittest

import numpy as np
import support
import weir

# Every worker takes its part of the sum of the examples' numbers. A worker's name, or what it does at which batch, is an argument.
PROGRAM = """
    import json, os, pathlib, sys, time
    import weir
    folder, who, at = pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    result = {}
    with weir.Client(sys.argv[1], {"w": (5,)}, 64) as client:
        for step in client.steps(result=result):
            if index == who and step.work.batch >= at and not (folder / "asked").exists():
                client.stop("the sum is large enough")
                (folder / "asked").touch()
                while (folder / "wait").exists():
                    time.sleep(0.01)
            step.gradient["w"][:] = float(step.examples.sum())
            step.push(loss=1.0)
    (folder / f"result-{index}").write_text(repr(result["w"].tolist()))
"""

SYNC = {"mode": "sync", "parts": 2}


def fields(consistency, **more):
    return {"data": {"batch_size": 4}, "train": {"epochs": 400}, "consistency": consistency,
            "optimizer": {"type": "sgd", "learning_rate": 0.001}, "server": {"min_shard_kib": 0}, **more}


class Stop(unittest.TestCase):
    def setUp(self):
        folder = support.folder()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def up(self, consistency, workers, who, at, *flags, **more):
        job = support.write_job(self.folder / "job.json", **fields(consistency, **more))
        return support.up(job, ["-c", textwrap.dedent(PROGRAM), job, self.folder, who, at], f"--workers={workers}", "--ps=2",
                          f"--summary={self.folder / 'summary.json'}", *flags)

    def summary(self):
        return json.loads((self.folder / "summary.json").read_text())

    def results(self):
        return {path.read_text() for path in self.folder.glob("result-*")}

    def test_sync(self):
        """All workers end, after one step, with the bits of a job of that length."""
        done = support.run(self.up(SYNC, 3, 1, 50))
        self.assertEqual(done.returncode, 0, done.stderr)
        summary = self.summary()
        self.assertEqual(summary["stopped_early"], "since worker:1 asked for it: the sum is large enough")
        self.assertIn("the sum is large enough", done.stdout)
        self.assertGreater(summary["steps"], 25)
        self.assertLess(summary["steps"], 100)
        self.assertEqual(summary["pushes"], 2 * summary["steps"])
        self.assertEqual(summary["examples"], 8 * summary["steps"])
        self.assertEqual(len(self.results()), 1)
        again = support.run(self.up(SYNC, 2, -1, 0, train={"examples": summary["examples"]}))
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(self.summary()["weights_sha256"], summary["weights_sha256"])
        self.assertIsNone(self.summary()["stopped_early"])

    def test_other_modes(self):
        for consistency in ({"mode": "async"}, {"mode": "bounded", "staleness": 1}):
            with self.subTest(consistency=consistency):
                (self.folder / "asked").unlink(missing_ok=True)
                done = support.run(self.up(consistency, 3, 2, 200))
                self.assertEqual(done.returncode, 0, done.stderr)
                summary = self.summary()
                self.assertEqual(summary["stopped_early"], "since worker:2 asked for it: the sum is large enough")
                self.assertLess(summary["examples"], 64 * 100)
                # Each batch that was given out is done, and none twice.
                self.assertEqual(summary["pushes"] * 4, summary["examples"])
                self.assertEqual(summary["lost_pushes"], 0)

    def test_ps0_dies_right_after_the_answer(self):
        """The worker asks the next one."""
        (self.folder / "wait").touch()
        up = self.up(SYNC, 2, 0, 50, "--restart=3", checkpoint={"directory": str(self.folder / "runs")})
        with subprocess.Popen(up, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            while not (self.folder / "asked").exists():
                self.assertIsNone(running.poll())
            os.kill(support.server_of(running.pid, 0), signal.SIGKILL)
            (self.folder / "wait").unlink()
            _, log = running.communicate(timeout=support.LIMIT_SECONDS)
        self.assertEqual(running.returncode, 0, log)
        summary = self.summary()
        self.assertEqual(summary["stopped_early"], "since worker:0 asked for it: the sum is large enough")
        self.assertLess(summary["steps"], 100)
        self.assertEqual(len(self.results()), 1)

    def test_max_seconds(self):
        done = support.run(self.up(SYNC, 2, -1, 0, train={"epochs": 1000000, "max_seconds": 0.5}))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.summary()["stopped_early"], "since it has taken train.max_seconds = 0.5")

    def test_one_process(self):
        """Started again the job is done, and with other `train` it goes on."""
        def steps(stop_at, **train):
            job = fields({"mode": "sync"}, train={"epochs": 2, **train}, checkpoint={"directory": str(self.folder / "runs")})
            result = {"w": np.zeros(5, dtype=np.float32)}
            n = 0
            with weir.Client(job, {"w": (5,)}, 64) as client:
                for step in client.steps(result=result):
                    n += 1
                    if n == stop_at:
                        client.stop("first")
                        client.stop("second")
                    step.gradient["w"][:] = 1
                    step.push()
            return n, float(result["w"][0])

        first = steps(5)
        self.assertEqual(first[0], 5)
        self.assertEqual(steps(0), (0, first[1]))
        n, weight = steps(0, epochs=3)
        self.assertEqual(n, 3 * 16 - 5)
        self.assertAlmostEqual(weight, -3 * 16 * 0.001, places=6)

    def test_errors(self):
        job = fields({"mode": "sync"}, train={"epochs": 1})
        with weir.Client(job, {"w": (5,)}, 64) as client:
            for step in client.steps():
                for reason, message in (("", "reason: must be 1 to 1000 bytes; got 0"), (3, "must be text, got int"),
                                        ("x" * 1001, "reason: must be 1 to 1000 bytes; got 1001")):
                    with self.assertRaisesRegex(weir.ConfigError, message):
                        client.stop(reason)
                step.gradient["w"][:] = 1
                step.push()
            with self.assertRaisesRegex(weir.Error, "stop\\(\\) is for a worker that is in the job"):
                client.stop("late")


if __name__ == "__main__":
    unittest.main()
