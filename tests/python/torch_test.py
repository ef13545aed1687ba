#!/usr/bin/python3
"""weir.torch trains what a serial loop in torch trains: to the bit in sync, with any number of workers and servers, killed ones
included; and what torch's own optimizers train, but for rounding."""
import os
import signal
import subprocess
import time
import unittest

import support
import torch
import torch.nn.functional as F
import train
import weir
import weir.torch
from torch_jobs import BATCH, EPOCHS, SEED, TRAIN, Run, gradient, job, serial_run


class Exact(unittest.TestCase):
    def test_in_this_process(self):
        for servers, *flags in ((3,), (1, "--num_workers=2"), (3, "--num_workers=2", "--start=forkserver")):
            with self.subTest(servers=servers, flags=flags):
                run = Run(self)
                done = support.run([support.PYTHON, TRAIN, run.job, run.folder, f"--servers={servers}", *flags])
                run.check(done, models=1)
                run.check_once()

    def test_any_number_of_workers_and_servers(self):
        for workers, servers in ((1, 2), (2, 1), (3, 3)):
            with self.subTest(workers=workers, servers=servers):
                run = Run(self)
                run.check(support.run(run.up(f"--workers={workers}", f"--ps={servers}")), models=workers)
                run.check_once()

    def test_batches_are_made_ahead(self):
        for workers in (1, 2, 3):
            with self.subTest(workers=workers):
                run = Run(self)
                run.check(support.run(run.up(f"--workers={workers}", "--tls", program=["--num_workers=1"])), models=workers)
                batches = EPOCHS * train.EXAMPLES // BATCH
                self.assertLess(run.made_here(), batches / 4)

    def test_overlap(self):
        """Gradients that leave during backward."""
        for workers, servers in ((1, 1), (2, 3), (3, 2)):
            with self.subTest(workers=workers, servers=servers):
                run = Run(self, {"hidden": train.WIDE}, wire={"chunk_kib": 256})
                done = support.run(run.up(f"--workers={workers}", f"--ps={servers}", program=["--overlap"]))
                run.check(done, models=workers)

    def test_running_statistics(self):
        for workers, servers in ((1, 1), (3, 2)):
            with self.subTest(workers=workers, servers=servers):
                run = Run(self, {"norm": True})
                run.check(support.run(run.up(f"--workers={workers}", f"--ps={servers}")), models=workers)

    def test_a_killed_worker(self):
        run = Run(self)
        done = support.run(run.up("--workers=2", "--ps=2", "--restart", program=["--die_at=5"]))
        self.assertTrue((run.folder / "died").exists())
        self.assertIn("started again", done.stderr)
        # The one that was started again may come when the other has done all the work.
        run.check(done, models=(1, 2))

    def test_weights_of_batches(self):
        """One that is computed again, since its worker was killed, has the same."""
        for servers in (1, 2, 3):
            with self.subTest(servers=servers):
                run = Run(self)
                done = support.run(run.up("--workers=2", f"--ps={servers}", "--restart", program=["--weigh", "--die_at=5"]))
                self.assertTrue((run.folder / "died").exists())
                run.check(done, models=(1, 2), weigh=True)
        self.assertFalse(all(map(torch.equal, serial_run().values(), serial_run(weigh=True).values())))

    def test_a_killed_server(self):
        self.kill_a_server()
        self.kill_a_server(weigh=True)

    def kill_a_server(self, weigh=False):
        run = Run(self, checkpoint={"directory": "checkpoints", "every_steps": 2},
                  cluster={"server_wait_seconds": 60, "lease_seconds": 5})
        up = subprocess.Popen(run.up("--workers=2", "--ps=2", "--restart", program=["--hold_at=7", *(["--weigh"] if weigh else [])]), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(up.kill)
        deadline = time.monotonic() + support.LIMIT_SECONDS
        while not (run.folder / "held").exists():
            self.assertIsNone(up.poll(), up.stderr.read() if up.poll() is not None else "")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        os.kill(support.server_of(up.pid, 1), signal.SIGKILL)
        (run.folder / "go").touch()
        out, error = up.communicate(timeout=support.LIMIT_SECONDS)
        self.assertIn("ps:1 was killed", error)
        run.check(subprocess.CompletedProcess(up.args, up.returncode, out, error), models=2, weigh=weigh)

    def test_dropout_matters(self):
        """The seeds of batches reach the model: without them the serial run has other bits."""
        data, model = train.Examples(), train.make_model()
        first = gradient(model, data, torch.arange(BATCH), batch=0)
        second = gradient(model, data, torch.arange(BATCH), batch=1)
        self.assertFalse(all(torch.equal(a, b) for a, b in zip(first, second)))


class BesideTorch(unittest.TestCase):
    def compare(self, optimizer, make):
        """200 steps with the job's optimizer and with torch's."""
        data = train.Examples()
        order = weir.ExampleOrder(len(data), SEED)
        steps = 200
        ours, theirs = train.make_model(dropout=0), train.make_model(dropout=0)
        config = job(optimizer=optimizer, train={"examples": steps * BATCH}, consistency={"mode": "sync"})
        opt = weir.torch.Optimizer(ours, config, data)
        for x, y, *_ in opt.loader():
            opt.zero_grad()
            F.cross_entropy(ours(x), y).backward()
            opt.step()
        reference = make(theirs.parameters())
        for step in range(steps):
            gradient(theirs, data, torch.from_numpy(order(step * BATCH, BATCH)).long())
            reference.step()
        for (name, a), b in zip(ours.named_parameters(), theirs.parameters()):
            error = ((a - b).norm() / b.norm()).item()
            self.assertLess(error, 1e-5, name)

    def test_sgd(self):
        self.compare({"type": "sgd", "learning_rate": 0.1}, lambda p: torch.optim.SGD(p, lr=0.1))

    def test_momentum(self):
        self.compare({"type": "momentum", "learning_rate": 0.05, "momentum": 0.9},
                     lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9))

    def test_adam(self):
        self.compare({"type": "adam", "learning_rate": 0.003}, lambda p: torch.optim.Adam(p, lr=0.003))

    def test_adamw(self):
        self.compare({"type": "adamw", "learning_rate": 0.003, "weight_decay": 0.02},
                     lambda p: torch.optim.AdamW(p, lr=0.003, weight_decay=0.02))


class Modes(unittest.TestCase):
    def test_each_example_once(self):
        for consistency in ({"mode": "async"}, {"mode": "bounded", "staleness": 1},
                            {"mode": "bounded", "staleness": 2, "prefetch": True}):
            with self.subTest(consistency=consistency):
                run = Run(self, consistency=consistency)
                done = support.run(run.up("--workers=2", "--ps=2", program=["--num_workers=1"]))
                self.assertEqual(done.returncode, 0, done.stderr)
                run.check_once()


if __name__ == "__main__":
    unittest.main()
