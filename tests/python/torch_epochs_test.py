#!/usr/bin/python3
"""Loops over epochs train what the one loop trains, to the bit; and what a program knows of a job before its loop is what then
comes."""
import contextlib
import json
import os
import unittest

import support
import torch
import torch.nn.functional as F
import train
import weir
import weir.torch
from torch_jobs import BATCH, EPOCHS, PARTS, STEPS, Run, job
from weir.torch.whole_job import WholeJob

PROGRAM = support.ROOT / "tests/python/train_epochs.py"


def batch_of(opt, model, x, y):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()


def trained(fields, **kind):
    """By the one loop: the weights, and the batches' numbers of examples."""
    model = train.make_model(**kind)
    opt = weir.torch.Optimizer(model, fields, train.Examples())
    batches = []
    for x, y, n, _ in opt.loader():
        batches.append(n.tolist())
        batch_of(opt, model, x, y)
    return model.state_dict(), batches


class SameBits(unittest.TestCase):
    def check(self, fields, between, **kind):
        model, data = train.make_model(**kind), train.Examples()
        opt = weir.torch.Optimizer(model, fields, data)
        batches, numbers = [], []
        for epoch in opt.epochs():
            numbers.append(epoch.number)
            for x, y, n, _ in epoch:
                self.assertEqual(opt.epoch, epoch.number)
                batches.append(n.tolist())
                batch_of(opt, model, x, y)
            self.assertEqual(list(epoch), [])
            between(opt, model)
        state, expected = trained(fields, **kind)
        self.assertEqual(batches, expected)
        for name, value in state.items():
            self.assertTrue(torch.equal(model.state_dict()[name], value), name)
        return numbers

    def test_one_process(self):
        def use(opt, model):
            torch.rand(5)
            with opt.snapshot():
                train.measure(model, train.Examples())
            model.train()

        for fields in (job(), job(data={"batch_size": 7}), job(consistency={"mode": "async"}, data={"batch_size": 7})):
            for kind in ({}, {"norm": True}):
                with self.subTest(fields=fields, kind=kind):
                    self.assertEqual(self.check(fields, use, **kind), list(range(EPOCHS)))

    def test_batches_larger_than_an_epoch(self):
        """Epochs in which none begins are left out."""
        self.assertEqual(self.check(job(data={"batch_size": 150}, consistency={"mode": "async"}), lambda *_: None), [0, 1, 3])

    def test_a_part_of_an_epoch(self):
        self.assertEqual(self.check(job(train={"epochs": 1.5}), lambda *_: None), [0, 1])

    def test_workers(self):
        for workers, made_ahead in ((1, 0), (2, 1), (3, 0)):
            with self.subTest(workers=workers):
                run = Run(self)
                done = support.run(support.up(run.job, [PROGRAM, run.job, run.folder, made_ahead], f"--workers={workers}", "--ps=2"))
                run.check(done, models=workers)
                told = [json.loads(path.read_text()) for path in run.folder.glob("told-*")]
                self.assertEqual(sorted(t["rank"] for t in told), list(range(workers)))
                for t in told:
                    self.assertEqual(t["before"], {"rank": t["rank"], "world_size": workers, "steps_total": STEPS,
                                                   "batches_total": STEPS * PARTS})
                for epoch in range(EPOCHS):
                    self.assertEqual(sorted(n for t in told for n in t["epochs"].get(str(epoch), [])), list(range(train.EXAMPLES)))


class Ends(unittest.TestCase):
    def setUp(self):
        self.model = train.make_model()
        self.opt = weir.torch.Optimizer(self.model, job(), train.Examples())

    def test_the_inner_loop_is_left(self):
        with self.assertRaisesRegex(weir.Error, "the loop over epoch 0 ended before the epoch.*set train.epochs"):
            for epoch in self.opt.epochs():
                for x, y, *_ in epoch:
                    batch_of(self.opt, self.model, x, y)
                    break
        self.assert_left()

    def test_both_loops_are_left(self):
        for epoch in self.opt.epochs():
            for x, y, *_ in epoch:
                batch_of(self.opt, self.model, x, y)
                break
            break
        self.assert_left()
        with self.assertRaisesRegex(weir.Error, r"epoch 0 has no batches any more"):
            next(epoch)

    def assert_left(self):
        """The job has ended, though the variables of the loops live."""
        with self.assertRaisesRegex(weir.Error, "only within the loop"):
            self.opt.client

    def test_an_exception_between_epochs(self):
        with self.assertRaises(ZeroDivisionError):
            for epoch in self.opt.epochs():
                for x, y, *_ in epoch:
                    batch_of(self.opt, self.model, x, y)
                1 / 0
        self.assert_left()

    def test_step_between_epochs(self):
        with self.assertRaisesRegex(weir.Error, "called between two epochs"):
            for epoch in self.opt.epochs():
                for x, y, *_ in epoch:
                    batch_of(self.opt, self.model, x, y)
                self.opt.step()

    def test_changed_weights_between_epochs(self):
        with self.assertRaisesRegex(weir.ConfigError, "0.weight"):
            for epoch in self.opt.epochs():
                for x, y, *_ in epoch:
                    batch_of(self.opt, self.model, x, y)
                with torch.no_grad():
                    self.model[0].weight.zero_()

    def test_one_loop(self):
        self.opt.epochs()
        for again in (self.opt.epochs, self.opt.loader):
            with self.assertRaisesRegex(weir.Error, "one loop trains the whole job"):
                again()

    def test_arguments(self):
        with self.assertRaisesRegex(weir.ConfigError, "shuffle cannot be given to epochs\\(\\)"):
            self.opt.epochs(shuffle=True)


class Before(unittest.TestCase):
    def test_the_length(self):
        """Counted by the loop."""
        sync = {"mode": "sync", "parts": PARTS}
        for train_fields, consistency, data in (
                ({"epochs": 2}, sync, {"batch_size": 7}), ({"epochs": 2}, sync, {"batch_size": 7, "drop_last": True}),
                ({"steps": 5}, sync, {"batch_size": 7}), ({"steps": 5}, {"mode": "async"}, {"batch_size": 7}),
                ({"epochs": 1.3}, {"mode": "async"}, {"batch_size": 5}), ({"examples": 100}, {"mode": "sync"}, {"batch_size": 9}),
                ({"examples": 100}, {"mode": "bounded", "staleness": 1}, {"batch_size": 9, "drop_last": True}),
                ({"epochs": 0.5}, sync, {"batch_size": 1}), ({"epochs": 45 / 96 + 0.5 / 96}, {"mode": "sync"}, {"batch_size": 1})):
            with self.subTest(train=train_fields, consistency=consistency, data=data):
                model = train.make_model()
                opt = weir.torch.Optimizer(model, job(train=train_fields, consistency=consistency, data=data), train.Examples())
                self.assertEqual((opt.rank, opt.world_size), (0, 1))
                with self.assertRaisesRegex(weir.Error, "the epoch is known from the first batch on"):
                    opt.epoch
                loader = opt.loader()
                batches, clock, first = len(loader), 0, 0
                self.assertEqual(opt.batches_total, batches)
                for x, y, *_ in loader:
                    batches, clock, first = batches - 1, opt._step.work.clock, opt._step.work.first_example
                    batch_of(opt, model, x, y)
                self.assertEqual(batches, 0)
                if consistency["mode"] == "sync":
                    self.assertEqual(opt.steps_total, clock + 1)
                else:
                    with self.assertRaisesRegex(weir.ConfigError, "has no steps; opt.batches_total"):
                        opt.steps_total
                self.assertEqual((opt.rank, opt.epoch), (0, first // train.EXAMPLES))

    def test_going_on(self):
        with support.folder() as folder:
            fields = job(checkpoint={"directory": folder, "every_steps": 4}, consistency={"mode": "sync"})
            model = train.make_model()
            opt = weir.torch.Optimizer(model, fields, train.Examples())
            with self.assertRaisesRegex(weir.Error, "set consistency.parts"):
                opt.steps_total
            loader = opt.loader()
            with self.assertRaisesRegex(TypeError, "go on from a checkpoint.*batches_total"):
                len(loader)
            for x, y, *_ in loader:
                batch_of(opt, model, x, y)
            # It was done before.
            opt = weir.torch.Optimizer(train.make_model(), fields, train.Examples())
            self.assertEqual(list(opt.epochs()), [])

    def place(self, config, **arguments):
        fields = arguments.pop("fields", {})
        arguments = {"cluster": None, "task": None, **arguments}
        with environment(config if isinstance(config, str) else json.dumps(config)):
            return WholeJob(weir.Job({"data": {"batch_size": 10}, **fields}), 100, **arguments)

    def test_the_place_in_a_cluster(self):
        task = lambda kind, index=0: {"type": kind, "index": index}
        two, chief = {"ps": ["h:1"], "worker": ["h:2", "h:3"]}, {"chief": ["h:4"], "worker": ["h:2", "h:3"], "ps": ["h:1"]}
        for config, place in (({"cluster": two, "task": task("worker", 1)}, (1, 2)),
                              ({"cluster": chief, "task": task("worker", 1)}, (2, 3)),
                              ({"cluster": chief, "task": task("chief")}, (0, 3)),
                              ({"cluster": {"master": ["h:4"], "worker": ["h:2"]}, "task": task("worker")}, (1, 2)),
                              ({"cluster": {"master": ["h:4"], "worker": ["h:2"]}, "task": task("master")}, (0, 2))):
            whole = self.place(config)
            self.assertEqual((whole.rank, whole.workers, whole.steps), (*place, -(-100 // place[1])))
        dynamic = {"sparseCluster": {"worker": {"3": "h:2"}, "ps": ["h:1"]}, "task": task("worker", 3)}
        self.assertEqual(self.place(dynamic).rank, 3)
        with self.assertRaisesRegex(weir.Error, "set cluster.workers"):
            self.place(dynamic).workers
        self.assertEqual(self.place(dynamic, fields={"cluster": {"workers": 5}}).workers, 5)
        given = {"cluster": two, "task": task("worker", 1)}
        for whole in (self.place(given, task="worker:0"), self.place(given, cluster="c.json"), self.place("{"), self.place([]),
                      self.place({"cluster": two, "task": task("evaluator")}), self.place({"cluster": two, "task": "worker"})):
            with self.assertRaisesRegex(weir.Error, "the rank is known from the first batch on"):
                whole.rank
        with self.assertRaisesRegex(TypeError, "depends on the other workers"):
            len(weir.torch.loops.Loader(iter(()), self.place(given)))


@contextlib.contextmanager
def environment(config):
    os.environ["TF_CONFIG"] = config
    try:
        yield
    finally:
        del os.environ["TF_CONFIG"]


if __name__ == "__main__":
    unittest.main()
