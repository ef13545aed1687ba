#!/usr/bin/python3
"""weir.torch.EmbeddingBag and Embedding: the same bits in sync with any number of workers and servers; what torch's own modules and
optimizers train, but for rounding; every mode; and misuse."""
import copy
import io
import pathlib
import unittest

import support
import torch
import torch.nn.functional as F
import train_tables
import weir
import weir.torch
from train_tables import EXAMPLES, VOCABULARY, Clicks

PROGRAM = support.ROOT / "tests/python/train_tables.py"
BATCH, SEED, DIM, RATE = 8, 9, 4, 0.05
ADAGRAD = {"type": "adagrad", "learning_rate": RATE, "epsilon": 1e-8}

torch.set_num_threads(1)


def job(optimizer=None, **more):
    optimizer = optimizer or ADAGRAD
    init = {"type": "normal", "value": 0.5}
    fields = {"seed": SEED, "data": {"batch_size": BATCH}, "train": {"epochs": 4}, "consistency": {"mode": "sync", "parts": 2},
              "optimizer": optimizer,
              "tables": [{"name": name, "dim": DIM, "init": init, "optimizer": optimizer} for name in ("words", "items")]}
    return {**fields, **more}


class Processes(unittest.TestCase):
    def train(self, job_fields, *flags, program=()):
        """What each worker saves, and what else the run leaves in its folder."""
        with support.folder() as name:
            folder = pathlib.Path(name)
            path = support.write_job(folder / "job.json", **job_fields)
            command = [PROGRAM, path, folder, *program]
            done = support.run(support.up(path, command, *flags) if flags else [support.PYTHON, *map(str, command)])
            self.assertEqual(done.returncode, 0, done.stderr)
            others = {found.stem: torch.load(found) if found.suffix == ".pt" else None for found in folder.iterdir()}
            return [others.pop(name) for name in list(others) if name.startswith("model-")], others

    def check(self, states, expected):
        for state in states:
            for name in ("words", "items", "out.weight", "out.bias"):
                self.assertTrue(torch.equal(state[name], expected[name]), name)

    def test_any_number_of_workers_and_servers(self):
        """The evaluator reads the same, with rows of the weights' version and with the newest."""
        (expected,), _ = self.train(job())
        self.check(self.train(job(), program=["--servers=2"])[0], expected)
        for workers, servers, program, *more in ((1, 2, []), (2, 1, []), (2, 2, ["--await_evaluator"], "--evaluator"),
                                                (2, 2, ["--await_evaluator", "--asked"], "--evaluator")):
            states, others = self.train(job(), f"--workers={workers}", f"--ps={servers}", *more, program=program)
            self.assertEqual(len(states), workers)
            self.check(states, expected)
            if more:
                self.check([others["read"], others["newest"]], expected)

    def test_rows_that_are_read_early(self):
        (expected,), _ = self.train(job())
        for more in ([], ["--num_workers=1"]):
            self.check(self.train(job(), "--workers=2", "--ps=2", program=["--prefetch", *more])[0], expected)

    def test_a_worker_that_loses_its_membership(self):
        """It stands still between its weights and their rows, and the job goes on without it. Then its rows are zeros, its gradients
        go nowhere, and it joins again."""
        (expected,), _ = self.train(job())
        states, others = self.train(job(cluster={"lease_seconds": 0.5}), "--workers=2", "--ps=2", program=["--stop"])
        self.assertIn("late", others)
        # The one that joins again may come when the other has done all the work.
        self.assertIn(len(states), (1, 2))
        self.check(states, expected)

    def test_a_snapshot_of_a_worker_that_lost_its_membership(self):
        long = job(train={"epochs": 20})
        (expected,), _ = self.train(long)
        states, others = self.train({**long, "cluster": {"lease_seconds": 0.5}}, "--workers=2", "--ps=2",
                                    program=["--stop", "--snapshot"])
        self.assertIn("read", others)
        self.check(states, expected)

    def test_modes_on_a_cluster(self):
        for consistency, *more in (({"mode": "async"},), ({"mode": "async"}, "--prefetch"),
                                   ({"mode": "bounded", "staleness": 1}, "--prefetch"),
                                   ({"mode": "bounded", "staleness": 2, "prefetch": True}, "--prefetch")):
            with self.subTest(consistency=consistency, more=more):
                states, _ = self.train(job(consistency=consistency, train={"epochs": 12}), "--workers=2", "--ps=2", program=more)
                self.assertEqual(len(states), 2)
                self.check(states[1:], states[0])
                for state in states:
                    self.assertLess(state["losses"][-10:].mean(), 0.9 * state["losses"][:5].mean())


class BesideTorch(unittest.TestCase):
    def compare(self, optimizer, make):
        """100 steps with the job's optimizer and with torch's, over a vocabulary that torch has whole."""
        data, steps = Clicks(), 100
        ours = train_tables.make_model(DIM)
        opt = weir.torch.Optimizer(ours, job(optimizer, train={"examples": steps * BATCH}, consistency={"mode": "sync"}), data)
        words, items = (torch.nn.Embedding(VOCABULARY, DIM) for _ in range(2))
        weighted, means = torch.nn.EmbeddingBag(VOCABULARY, DIM, mode="sum"), torch.nn.EmbeddingBag(VOCABULARY, DIM, mode="mean")
        weighted.weight = means.weight = words.weight
        theirs = train_tables.Model(means, weighted, words, items, DIM)
        for step, (keys, counts, clicked, y) in enumerate(opt.loader(final_keys={"words": data.keys, "items": data.keys})):
            if step == 0:
                with torch.no_grad():
                    for into, module in ((words, ours.clicked), (items, ours.items)):
                        into.weight.copy_(module(data.keys))
                first = words.weight.clone()
            opt.zero_grad()
            F.binary_cross_entropy_with_logits(ours(keys, counts, clicked), y).backward()
            opt.step()
        reference = make(theirs.parameters())
        order = weir.ExampleOrder(EXAMPLES, SEED)
        for step in range(steps):
            i = torch.from_numpy(order(step * BATCH, BATCH)).long()
            reference.zero_grad()
            F.binary_cross_entropy_with_logits(theirs(data.numbers[i], data.counts[i], data.clicked[i]), data.y[i]).backward()
            reference.step()
        found = {"words": ours.clicked(data.keys), "items": ours.items(data.keys), "out": ours.out.weight}
        for (name, a), b in zip(found.items(), (words.weight, items.weight, theirs.out.weight)):
            self.assertLess(((a - b).norm() / b.norm()).item(), 1e-5, name)
        self.assertGreater((first - words.weight).norm().item(), 0.1)

    def test_sgd(self):
        self.compare({"type": "sgd", "learning_rate": 0.3}, lambda p: torch.optim.SGD(p, lr=0.3))

    def test_adagrad(self):
        self.compare(ADAGRAD, lambda p: torch.optim.Adagrad(p, lr=RATE, eps=1e-8))


class Small(torch.nn.Module):
    def __init__(self, table="words", **bag):
        super().__init__()
        self.rows = weir.torch.EmbeddingBag(table, **bag)
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, *input):
        return self.scale * self.rows(*input)


class Batches(unittest.TestCase):
    """What happens to the rows of a batch; one process, sgd with rate 1."""

    def setUp(self):
        sgd = {"type": "sgd", "learning_rate": 1}
        self.job = job(sgd, train={"examples": BATCH}, consistency={"mode": "sync"})
        self.job["tables"][0]["init"] = {"type": "constant", "value": 2}
        self.keys = torch.tensor([5, -5, 6])

    def rows_after(self, use):
        """The rows of the keys after a step in which `use` has made the gradients."""
        model = Small()
        opt = weir.torch.Optimizer(model, self.job, Clicks())
        for _ in opt.loader(final_keys={"words": self.keys}):
            use(opt, model)
            opt.step()
        return model.rows(self.keys[:, None])[:, 0].tolist()

    def test_the_gradients_of_all_forwards_are_summed(self):
        def use(_, model):
            for _ in range(2):
                model(torch.tensor([[5, -5, 5]])).sum().backward()
            with torch.no_grad():
                model(torch.tensor([[6]]))

        self.assertEqual(self.rows_after(use), [-2, 0, 2])

    def test_zero_grad_before_backward(self):
        def use(opt, model):
            model(torch.tensor([[5, 6]])).sum().backward()
            loss = model(torch.tensor([[5, -5]])).sum()
            opt.zero_grad()
            loss.backward()

        self.assertEqual(self.rows_after(use), [1, 1, 2])

    def test_empty_bags(self):
        def use(_, model):
            found = model(torch.tensor([5, -5]), torch.tensor([0, 0, 2]))
            self.assertEqual(found[:, 0].tolist(), [0, 4, 0])
            found.sum().backward()
            none = model(torch.empty(0, dtype=torch.int64), torch.tensor([0, 0]))
            self.assertEqual(none.tolist(), [[0] * DIM] * 2)
            none.sum().backward()

        self.assertEqual(self.rows_after(use), [1, 1, 2])

    def test_last_offset(self):
        bag = weir.torch.EmbeddingBag("words", include_last_offset=True)
        bag._read = lambda table, keys: keys[:, None].float()
        self.assertEqual(bag(torch.tensor([5, -5, 6]), torch.tensor([0, 1, 3])).tolist(), [[5], [1]])

    def test_snapshots(self):
        """Rows are the newest, or those of the weights; without part in the gradient."""
        def use(opt, model):
            model(torch.tensor([[5]])).sum().backward()
            with opt.snapshot() as version:
                self.assertEqual(version, 0)
                self.assertEqual(model(self.keys[:, None])[:, 0].tolist(), [2, 2, 2])
            with opt.snapshot(keys={"words": self.keys}):
                self.assertEqual(model(self.keys[[2, 0]][:, None])[:, 0].tolist(), [2, 2])
                with self.assertRaisesRegex(weir.Error, "key 8 was not named"):
                    model(torch.tensor([[8]]))
            model(torch.tensor([[6]])).sum().backward()

        self.assertEqual(self.rows_after(use), [1, 2, 1])


class Early(unittest.TestCase):
    def test_a_stream_that_has_just_the_jobs_examples(self):
        """Nothing is read beyond its end, where no batch follows."""
        class Stream(torch.utils.data.IterableDataset):
            left = iter(range(3 * BATCH))

            def __iter__(self):
                return self.left

        opt = weir.torch.Optimizer(Small(), job(consistency={"mode": "async"}, train={"examples": 3 * BATCH}), Stream())
        batches = 0
        for keys in opt.loader(prefetch_keys=lambda keys: {"words": keys}):
            opt.step()
            batches += 1
        self.assertEqual(batches, 3)


class Misuse(unittest.TestCase):
    def error(self, text, call, kind=weir.ConfigError):
        with self.assertRaises(kind) as caught:
            call()
        self.assertIn(text, str(caught.exception))

    def test_is_refused_with_what_to_do(self):
        def train(model, use, **more):
            opt = weir.torch.Optimizer(model, job(**more), Clicks())
            for _ in opt.loader():
                use(model)
                opt.step()

        keys = torch.tensor([[1, 2]])
        self.error("Give the model to weir.torch.Optimizer", lambda: Small()(keys), weir.Error)
        self.error("no table 'words': it has none; its config lists them in `tables`",
                   lambda: train(Small(), None, tables=[]))
        self.error("no table 'visits': it has words, items", lambda: train(Small("visits"), None))
        self.error("table must be the name of one of the job's tables, got 1000", lambda: weir.torch.Embedding(1000))
        self.error("keys must be a tensor of int64, got torch.int32", lambda: train(Small(), lambda m: m(keys.int())))
        self.error("got list", lambda: Small()([1]))
        self.error("mode must be \"sum\" or \"mean\", got 'max'", lambda: Small(mode="max"))
        self.error("keys must be a tensor of int64", lambda: weir.torch.Optimizer(Small(), job(), Clicks()).loader(
            final_keys={"words": keys.int()}))
        self.error("must be a mapping, table -> tensor of int64, got list",
                   lambda: weir.torch.Optimizer(Small(), job(), Clicks()).loader(final_keys=[1]))

    def test_outside_of_the_batches(self):
        model, left = Small(), []
        opt = weir.torch.Optimizer(model, job(), Clicks())

        def late():
            for _ in opt.loader():
                if left:
                    left[0].backward()
                left.append(model.rows(torch.tensor([[1]])).sum())
                opt.step()

        self.error("backward() came after the batch", late, weir.Error)
        self.error("a model's rows are on the servers", lambda: model(torch.tensor([[1]])), weir.Error)

    def test_after_the_loop(self):
        model = Small()
        opt = weir.torch.Optimizer(model, job(), Clicks())
        for _ in opt.loader():
            opt.step()
        self.error("key 1 was not named", lambda: model(torch.tensor([[1]])), weir.Error)
        self.error("name their keys in loader(final_keys=...)", lambda: opt.snapshot({"words": torch.tensor([1])}).__enter__(), weir.Error)

    def test_copies(self):
        """A copy of a model, while it trains, is without rows."""
        model = Small()
        opt = weir.torch.Optimizer(model, job(), Clicks())
        for _ in opt.loader():
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            for other in (copy.deepcopy(model), torch.load(file)):
                self.error("Give the model to weir.torch.Optimizer", lambda: other(torch.tensor([[1]])), weir.Error)
            self.assertEqual(list(model.state_dict()), ["scale"])
            model(torch.tensor([[1]])).sum().backward()
            opt.step()


if __name__ == "__main__":
    unittest.main()
