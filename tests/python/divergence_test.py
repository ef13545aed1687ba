#!/usr/bin/python3
"""train.divergence in programs of Python: ps:0 decides by the losses that the workers report."""
import os
import pathlib
import signal
import subprocess
import textwrap
import unittest

import support

# The program climbs: each step makes the weights' error 1.05 times as large, a little less if the gradient is stale. The
# weights stay finite for a thousand steps.
TORCH = """
    import sys, torch, weir.torch
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    data = torch.utils.data.TensorDataset(torch.ones(64, 4), torch.ones(64, 1))
    opt = weir.torch.Optimizer(model, sys.argv[1], data)
    for x, y in opt.loader():
        opt.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        (-loss).backward()
        opt.step(loss=loss)
"""

# Loss by what this membership has done so far: the first one begins as the job does. worker:1 stops after 100 batches; later
# it happens to begin with five batches that it has learned by heart. worker:0 leaves it something to do.
STOPS = """
    import json, os, pathlib, signal, sys, time
    import weir
    folder = pathlib.Path(sys.argv[2])
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    with weir.Client(sys.argv[1], {"w": (3,)}, 64) as client:
        start, memberships, n = None, 0, 0
        for step in client.steps():
            if client.start_clock != start:
                start, memberships, n = client.start_clock, memberships + 1, 0
            loss = (2.0 if n < 60 else 0.0) if memberships == 1 else (0.0 if n < 5 else 1.5)
            step.gradient.flat[:] = 0
            step.push(loss=loss)
            n += 1
            if index == 1 and memberships == 1 and n == 200:
                (folder / "pid").write_text(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGSTOP)
            if index == 1 and memberships == 2 and n == 200:
                (folder / "again").touch()
            while index == 0 and n == 200 and not (folder / "again").exists():
                time.sleep(0.01)
"""

NOT_FINITE = """
    import sys, weir
    with weir.Client(sys.argv[1], {"w": (3,)}, 64) as client:
        for step in client.steps():
            step.gradient.flat[:] = 0
            step.push(loss=float("nan") if step.work.batch > 20 else 1.0)
"""


def job(folder, **more):
    fields = {"data": {"batch_size": 4}, "train": {"epochs": 30, "divergence": 10},
              "optimizer": {"type": "sgd", "learning_rate": 0.005}, "consistency": {"mode": "sync"}}
    return support.write_job(os.path.join(folder, "job.json"), **{**fields, **more})


class Divergence(unittest.TestCase):
    def setUp(self):
        folder = support.folder()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def alone(self, text, **more):
        return support.run([support.PYTHON, "-c", textwrap.dedent(text), job(self.folder, **more)])

    def up(self, text, *args, **more):
        return support.up(job(self.folder, **more), ["-c", textwrap.dedent(text), self.folder / "job.json", *args], "--workers=2",
                          "--ps=2")

    def check(self, done):
        self.assertEqual(done.returncode, 70, done.stderr)
        self.assertRegex(done.stderr, r"training diverged: worker \d: the mean loss of the last \d+ batches is [\d.e+]+, the lowest "
                                      r"before was [\d.e+-]+ \(train.divergence = 10\) at clock \d+; try a lower")

    def test_torch(self):
        self.check(self.alone(TORCH))
        done = self.alone(TORCH, train={"epochs": 30, "divergence": 0})
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_torch_with_workers(self):
        for mode in ("sync", "async"):
            with self.subTest(mode):
                self.check(support.run(self.up(TORCH, consistency={"mode": mode})))

    def test_a_job_that_ends_before_the_next_heartbeat(self):
        self.check(self.alone(TORCH, train={"epochs": 4, "divergence": 10}))

    def test_losses_that_are_not_finite(self):
        done = self.alone(NOT_FINITE)
        self.assertEqual(done.returncode, 70, done.stderr)
        self.assertIn("worker 0: the losses of the last 50 batches are not finite (train.divergence = 10) at clock ", done.stderr)

    def test_a_worker_that_was_stopped(self):
        """It joins again, and is judged by the job's beginning, not by its own."""
        command = self.up(STOPS, self.folder, train={"epochs": 100}, consistency={"mode": "async"},
                          cluster={"lease_seconds": 2})
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            said = []
            for line in process.stderr:
                said.append(line)
                if "worker:1 (rank 1, incarnation " in line and "is taken out" in line and len(list(self.folder.glob("pid"))):
                    os.kill(int((self.folder / "pid").read_text()), signal.SIGCONT)
            self.assertEqual(process.wait(support.LIMIT_SECONDS), 0, "".join(said))
        self.assertTrue((self.folder / "again").exists(), "".join(said))


if __name__ == "__main__":
    unittest.main()
