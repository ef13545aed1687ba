#!/usr/bin/python3
"""weir.torch trains what a serial loop in torch trains: to the bit in sync, with any number of workers and servers, killed ones
included; and what torch's own optimizers train, but for rounding."""
import collections
import os
import pathlib
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

TRAIN = support.ROOT / "tests/python/train.py"
BATCH, PARTS, EPOCHS, SEED = 8, 3, 4, 9
RATE, MOMENTUM = 0.05, 0.9

torch.set_num_threads(1)


def job(**more):
    fields = {"seed": SEED, "data": {"batch_size": BATCH}, "train": {"epochs": EPOCHS},
              "consistency": {"mode": "sync", "parts": PARTS}, "server": {"min_shard_kib": 0},
              "optimizer": {"type": "momentum", "learning_rate": RATE, "momentum": MOMENTUM}}
    return {**fields, **more}


def gradient(model, data, indices, batch=None):
    if batch is not None:
        torch.manual_seed((SEED + 0x9E3779B97F4A7C15 * (batch + 1)) % 2**63)
    model.zero_grad()
    F.cross_entropy(model(data.x[indices]), data.y[indices]).backward()
    return [p.grad.clone() for p in model.parameters()]


def serial_run(begin=None):
    """The weights that steps over the same parts make, one after another: the mean of the parts in their order, and then the
    published formula of momentum."""
    data, model = train.Examples(), begin or train.make_model()
    order = weir.ExampleOrder(len(data), SEED)
    speeds = [torch.zeros_like(p) for p in model.parameters()]
    for step in range(EPOCHS * len(data) // (BATCH * PARTS)):
        mean = None
        for part in range(PARTS):
            batch = step * PARTS + part
            indices = torch.from_numpy(order(batch * BATCH, BATCH)).long()
            share = torch.tensor(1.0) / PARTS
            terms = [share * g for g in gradient(model, data, indices, batch)]
            mean = terms if mean is None else [m + t for m, t in zip(mean, terms)]
        with torch.no_grad():
            for p, v, g in zip(model.parameters(), speeds, mean):
                v.mul_(MOMENTUM).add_(g)
                p.sub_(RATE * v)
    return model.state_dict()


class Run:
    """The folder of a job, its runs, and what they have left there."""

    def __init__(self, test, **fields):
        temporary = support.folder()
        test.addCleanup(temporary.cleanup)
        self.test, self.folder = test, pathlib.Path(temporary.name)
        self.job = support.write_job(self.folder / "job.json", **job(**fields))

    def up(self, *flags, program=()):
        return support.up(self.job, [TRAIN, self.job, self.folder, *program], *flags)

    def models(self):
        return [torch.load(path) for path in self.folder.glob("model-*.pt")]

    def seen(self):
        return collections.Counter(
            int(n) for path in self.folder.glob("seen-*") for n in path.read_text().split())

    def check(self, done, models, begin=None):
        self.test.assertEqual(done.returncode, 0, done.stderr)
        found, expected = self.models(), serial_run(begin)
        self.test.assertIn(len(found), models if isinstance(models, tuple) else (models,))
        for state in found:
            for name, value in expected.items():
                self.test.assertTrue(torch.equal(state[name], value), f"{name} has other bits")

    def made_here(self):
        """The batches that the loader's processes had not made ahead."""
        return sum(int(path.read_text()) for path in self.folder.glob("here-*"))

    def check_once(self):
        self.test.assertEqual(set(self.seen().values()), {EPOCHS})
        self.test.assertEqual(len(self.seen()), train.EXAMPLES)


class Exact(unittest.TestCase):
    def test_in_this_process(self):
        for servers in (1, 3):
            for flags in ([], ["--num_workers=2"], ["--num_workers=2", "--start=forkserver"]):
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

    def test_a_killed_worker(self):
        run = Run(self)
        done = support.run(run.up("--workers=2", "--ps=2", "--restart", program=["--die_at=5"]))
        self.assertTrue((run.folder / "died").exists())
        self.assertIn("started again", done.stderr)
        # The one that was started again may come when the other has done all the work.
        run.check(done, models=(1, 2))

    def test_a_killed_server(self):
        run = Run(self, checkpoint={"directory": "checkpoints", "every_steps": 2},
                  cluster={"server_wait_seconds": 60, "lease_seconds": 5})
        up = subprocess.Popen(run.up("--workers=2", "--ps=2", "--restart", program=["--hold_at=7"]), text=True,
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
        run.check(subprocess.CompletedProcess(up.args, up.returncode, out, error), models=2)

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


class Use(unittest.TestCase):
    """The optimizer as users of torch know it, and what it refuses."""

    def optimizer(self, model=None, data=None, **fields):
        return weir.torch.Optimizer(model or train.make_model(), job(**fields), data or train.Examples())

    def test_it_is_an_optimizer(self):
        opt = self.optimizer()
        self.assertIsInstance(opt, torch.optim.Optimizer)
        self.assertEqual(opt.state_dict()["param_groups"][0]["lr"], RATE)

    def test_frozen_and_tied_parameters_and_buffers(self):
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.frozen = torch.nn.Linear(6, 6)
                self.frozen.requires_grad_(False)
                self.norm = torch.nn.BatchNorm1d(6)
                self.a = torch.nn.Linear(6, 6)
                self.b = torch.nn.Linear(6, 6)
                self.b.weight = self.a.weight
                self.unused = torch.nn.Parameter(torch.ones(2))

            def forward(self, x):
                return self.b(self.a(self.norm(self.frozen(x))))[:, :3]

        model = Model()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        opt = self.optimizer(model)
        for x, y, *_ in opt.loader():
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
        after = model.state_dict()
        changed = {name for name in after if not torch.equal(after[name], before[name])}
        self.assertTrue({"a.weight", "a.bias", "b.weight", "norm.weight", "norm.running_mean"} <= changed, changed)
        self.assertFalse({"frozen.weight", "frozen.bias", "unused"} & changed)
        self.assertIs(model.a.weight, model.b.weight)
        self.assertEqual(after["norm.num_batches_tracked"], EPOCHS * train.EXAMPLES // BATCH)

    def test_clip_norm_and_a_closure(self):
        data, ours, theirs = train.Examples(), train.make_model(0), train.make_model(0)
        opt = self.optimizer(ours, data, train={"examples": 4 * BATCH, "clip_norm": 0.05},
                             optimizer={"type": "sgd", "learning_rate": 1}, consistency={"mode": "sync"})
        for x, y, *_ in opt.loader():
            def closure():
                opt.zero_grad()
                loss = F.cross_entropy(ours(x), y)
                loss.backward()
                return loss
            self.assertGreater(opt.step(closure).item(), 0)
        order = weir.ExampleOrder(len(data), SEED)
        sgd = torch.optim.SGD(theirs.parameters(), lr=1)
        for step in range(4):
            gradient(theirs, data, torch.from_numpy(order(step * BATCH, BATCH)).long())
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.05)
            sgd.step()
        for a, b in zip(ours.parameters(), theirs.parameters()):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)

    def test_snapshot(self):
        model = train.make_model()
        opt = self.optimizer(model)
        versions = []
        for x, y, *_ in opt.loader():
            own = [p.clone() for p in model.parameters()]
            with opt.snapshot() as version:
                versions.append(version)
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(own, model.parameters())))
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
        self.assertEqual(versions[0], 0)
        self.assertEqual(versions[-1], EPOCHS * train.EXAMPLES // (BATCH * PARTS) - 1)

    def test_misuse_is_refused_with_what_to_do(self):
        def loop(change):
            opt = self.optimizer()
            for x, y, *_ in opt.loader():
                F.cross_entropy(torch.nn.Linear(6, 3)(x), y).backward()
                change(opt)
                opt.step()

        def twice(opt):
            opt.step()

        def schedule(opt):
            opt.param_groups[0]["lr"] = 0.5

        cases = [
            ("loader", lambda: self.optimizer().step()),
            ("pushed already", lambda: loop(twice)),
            ("optimizer.schedule", lambda: loop(schedule)),
            ("optimizer.groups", lambda: self.optimizer().add_param_group({"params": []})),
            ("checkpoint.directory", lambda: self.optimizer().load_state_dict({})),
            ("data.batch_size", lambda: self.optimizer().loader(batch_size=4)),
            ("GradScaler", lambda: getattr(self.optimizer(), "_step_supports_amp_scaling")),
            ("float32", lambda: self.optimizer(torch.nn.Linear(2, 2).double())),
            ("no parameter that requires", lambda: self.optimizer(torch.nn.ReLU())),
            ("map-style", lambda: self.optimizer(data=iter([]))),
            ("train.micro_batches", lambda: self.optimizer(train={"micro_batches": 2})),
            ("worker", lambda: self.optimizer(cluster={"workers": 2}).loader().__next__()),
        ]
        for text, call in cases:
            with self.subTest(text):
                with self.assertRaises(weir.Error) as caught:
                    call()
                self.assertIn(text, str(caught.exception))

    def test_a_step_that_is_missing(self):
        with self.assertRaisesRegex(weir.Error, "step\\(\\) was not called"):
            for _ in self.optimizer().loader():
                pass

    def test_leaving_early(self):
        opt = self.optimizer()
        for _ in opt.loader():
            break
        with self.assertRaises(weir.Error):
            opt.client


class Up(unittest.TestCase):
    def test_an_exception_is_the_first_cause(self):
        run = Run(self)
        done = support.run(run.up("--workers=2", program=["--fail_at=3"]))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("ValueError: this batch is bad", done.stderr)
        self.assertRegex(done.stderr, "error: worker:[01] exited with 1")

    def test_who_trains(self):
        run = Run(self)
        program = ["--", "python"]
        for flags, text in (([], "weir up JOB -- PROGRAM ARGS"), (["--evaluator", *program], "--evaluator"),
                            (["--device=cpu", *program], "--device")):
            done = support.run([support.ROOT / "cli/weir", "up", run.job, *flags])
            self.assertEqual(done.returncode, 78, done.stderr)
            self.assertIn(text, done.stderr)
        done = support.run([support.ROOT / "worker/worker", f"--config={run.job}"])
        self.assertEqual(done.returncode, 78, done.stderr)
        self.assertIn("model and data are missing", done.stderr)
        done = support.run([support.ROOT / "cli/weir", "config", "check", run.job])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("of the program that the job is for", done.stdout)

    def test_init_from(self):
        """A folder of initial weights comes before those that the workers have."""
        run = Run(self)
        other = train.make_model()
        with torch.no_grad():
            for p in other.parameters():
                p.add_(1)
        weir.torch.save_weights(other, run.folder / "initial")
        run.check(support.run(run.up("--workers=2", f"--init_from={run.folder}/initial")), models=2, begin=other)


if __name__ == "__main__":
    unittest.main()
