#!/usr/bin/python3
"""Batches that are smaller than the others, or larger than the training set, and what BatchNorm makes of them."""
import unittest

import support
import torch
import torch.nn.functional as F
import weir
import weir.torch

PROGRAM = """
import torch, weir.torch
opt = weir.torch.Optimizer(torch.nn.Linear(6, 3), {}, torch.utils.data.TensorDataset(torch.ones(64, 6)))
for x, in opt.loader():
    opt.step()
"""


def data(n):
    random = torch.Generator().manual_seed(5)
    return torch.utils.data.TensorDataset(torch.randn(n, 6, generator=random), torch.randint(3, (n,), generator=random))


def job(mode="sync", batch_size=8, **more):
    return {"data": {"batch_size": batch_size, **more}, "train": {"epochs": 1}, "consistency": {"mode": mode},
            "optimizer": {"type": "sgd", "learning_rate": 0.1}}


def dense(shape=(8,), **options):
    """BatchNorm over 8 channels, with as many values of each as the rest of the shape says."""
    size = torch.Size(shape).numel()
    norm = (torch.nn.BatchNorm1d if len(shape) < 3 else torch.nn.BatchNorm2d)(8, **options)
    return torch.nn.Sequential(torch.nn.Linear(6, size), torch.nn.Unflatten(1, shape), norm, torch.nn.Flatten(), torch.nn.Linear(size, 3))


def train(model, config, examples, pieces=1):
    """The sizes of the batches. pieces: each goes through the model in so many."""
    sizes = []
    opt = weir.torch.Optimizer(model, config, data(examples))
    try:
        for x, y in opt.loader():
            opt.zero_grad()
            for part, label in zip(x.chunk(pieces), y.chunk(pieces)):
                F.cross_entropy(model(part), label).backward()
            opt.step()
            sizes.append(len(x))
    except weir.ConfigError:
        assert not sizes, sizes
        raise
    return sizes


class OneExample(unittest.TestCase):
    def test_it_is_refused_before_the_first_step(self):
        cases = [(job(), 41, 1, "the job has 41 examples in batches of 8 .* its last batch has 1. Set data.drop_last"),
                 (job("async"), 41, 1, "its last batch has 1"), (job(), 41, 2, "its last batch has 1"),
                 (job(batch_size=1), 5, 1, "data.batch_size is 1; set at least 2"), (job(), 1, 1, "the job has 1 examples")]
        for config, examples, pieces, text in cases:
            with self.subTest(config=config, examples=examples, pieces=pieces):
                with self.assertRaisesRegex(weir.ConfigError, f"^the BatchNorm layer 2 cannot train on a batch of one example, .*{text}"):
                    train(dense(), config, examples, pieces)

    def test_where_it_does_no_harm(self):
        frozen, without = dense(), dense(track_running_stats=False)
        frozen[2].eval()
        without.eval()
        self.assertEqual(train(frozen, job(), 17), [8, 8, 1])
        with self.assertRaisesRegex(weir.ConfigError, "BatchNorm layer 2"):
            train(without, job(), 17)
        for model in (dense((8, 2)), dense((8, 2, 1)), torch.nn.Linear(6, 3)):
            self.assertEqual(train(model, job(), 17), [8, 8, 1])
            self.assertFalse(any(module._forward_pre_hooks for module in model.modules()))
        self.assertEqual(train(dense(), job(), 18), [8, 8, 2])

    def test_drop_last(self):
        for mode in ("sync", "async"):
            self.assertEqual(train(dense(), job(mode, drop_last=True), 17), [8, 8])
        config = job(drop_last=True)
        config["consistency"]["parts"] = 2
        self.assertEqual(train(dense(), config, 41), [8, 8, 8, 8])
        with self.assertRaisesRegex(weir.ConfigError, "drop_last cannot be given to loader\\(\\): set data.drop_last of the job"):
            weir.torch.Optimizer(dense(), job(), data(41)).loader(drop_last=True)


class LargeBatches(unittest.TestCase):
    def test_they_are_warned_of(self):
        for mode, text in (("sync", "a step has 2000 examples (2 x data.batch_size 1000), and the training set has 64"),
                           ("async", "a batch has 1000 examples (data.batch_size 1000), and the training set has 64")):
            config = job(mode, 1000)
            if mode == "sync":
                config["consistency"]["parts"] = 2
            done = support.run([support.PYTHON, "-c", PROGRAM.replace("{}", repr(config))])
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main()
