#!/usr/bin/python3
"""Batches that the program arranges, and streams that have shards: the same bits on any workers, and each example as often as it should
come."""
import collections
import itertools
import json
import pathlib
import random
import unittest

import support
import torch
import train
import train_data
import weir
import weir.torch
from train_data import BATCH, EPOCHS, EXAMPLES, PARTS, WINDOW, Listed, Stream, length

PROGRAM = support.ROOT / "tests/python/train_data.py"
ALL = EPOCHS * EXAMPLES


def job(mode="sync", **more):
    return {"seed": 9, "data": {"batch_size": BATCH}, "train": {"epochs": EPOCHS},
            "consistency": {"mode": mode, **{"sync": {"parts": PARTS}, "bounded": {"staleness": 1}, "async": {}}[mode]},
            "optimizer": {"type": "momentum", "learning_rate": 0.05, "momentum": 0.9}, **more}


class Case(unittest.TestCase):
    def check_same_bits(self, a, b):
        for name, value in a.items():
            self.assertTrue(torch.equal(value, b[name]), f"{name} has other bits")

    def in_a_cluster(self, kind, config, *flags):
        """Two workers, as weir up starts them. The models that they have in the end, and the batches of those who saw the end."""
        with support.folder() as name:
            folder = pathlib.Path(name)
            path = support.write_job(folder / "job.json", **config)
            restart = [flag for flag in flags if flag == "--restart"]
            program = [PROGRAM, path, kind, folder, *(flag for flag in flags if flag not in restart)]
            done = support.run(support.up(path, program, "--workers=2", "--ps=2", *restart))
            self.assertEqual(done.returncode, 0, done.stderr)
            models = [torch.load(file) for file in folder.glob("model-*.pt")]
            self.assertTrue(models)
            return models, [json.loads(file.read_text()) for file in folder.glob("batches-*.json")]


class Arranged(Case):
    def test_each_example_once_in_an_epoch_and_like_lengths_together(self):
        plain = weir.ExampleOrder(EXAMPLES, 9)
        spreads = {}
        for kind, num_workers in (("plain", 0), ("sampler", 0), ("batch_sampler", 0), ("batch_sampler", 2)):
            with self.subTest(kind=kind, num_workers=num_workers):
                _, batches = train_data.run(job(), kind, num_workers)
                self.assertEqual([number for number, _ in batches], list(range(-(-ALL // BATCH))))
                for epoch in range(EPOCHS):
                    whole = [examples for number, examples in batches
                             if epoch * EXAMPLES <= number * BATCH and (number + 1) * BATCH <= (epoch + 1) * EXAMPLES]
                    self.assertEqual(max(collections.Counter(itertools.chain(*whole)).values()), 1)
                seen = collections.Counter(i for _, examples in batches for i in examples)
                self.assertEqual((set(seen.values()), len(seen)), ({EPOCHS}, EXAMPLES))
                # A batch with examples of two epochs is as it would be without.
                crossing = EXAMPLES // BATCH
                self.assertEqual(batches[crossing][1], plain(crossing * BATCH, BATCH).tolist())
                spreads[kind] = sum(max(map(length, examples)) - min(map(length, examples)) for _, examples in batches) / len(batches)
        self.assertLess(spreads["batch_sampler"], 0.55 * spreads["plain"])
        self.assertLess(spreads["sampler"], 0.55 * spreads["plain"])

    def test_what_the_hook_is_given(self):
        order, given = weir.ExampleOrder(EXAMPLES, 9), []

        def hook(indices):
            if indices not in given:
                given.append(indices.copy())
            return indices

        opt = weir.torch.Optimizer(train.make_model(), job(), Listed(), progress=False)
        got = [numbers.tolist() for _, _, numbers in each(opt, sampler=hook, window=WINDOW)]
        self.assertEqual(sum(got, []), order(0, ALL).tolist())
        # 11 whole batches of each epoch.
        self.assertEqual([len(indices) // BATCH for indices in given], [4, 4, 3] * EPOCHS)
        self.assertEqual(given[3], order(12 * BATCH, 4 * BATCH).tolist())

    def test_same_bits_on_any_workers(self):
        model, batches = train_data.run(job(), "batch_sampler")
        for flags in ([], ["--die_at=4", "--restart"], ["--num_workers=2"]):
            with self.subTest(flags=flags):
                models, seen = self.in_a_cluster("batch_sampler", job(), *flags)
                for state in models:
                    self.check_same_bits(model.state_dict(), state)
                for number, examples in itertools.chain(*seen):
                    self.assertEqual(examples, batches[number][1])

    def test_each_once_in_async(self):
        _, seen = self.in_a_cluster("batch_sampler", job("async"))
        found = collections.Counter(i for _, examples in itertools.chain(*seen) for i in examples)
        self.assertEqual((set(found.values()), len(found)), ({EPOCHS}, EXAMPLES))

    def test_the_program_s_random_numbers_stay(self):
        random.seed(5)
        expected = random.random()
        random.seed(5)
        loader = weir.torch.Optimizer(train.make_model(), job(), Listed()).loader(batch_sampler=train_data.by_length)
        self.assertEqual(random.random(), expected)
        loader.close()

    def test_what_is_refused(self):
        def loader(data=None, config=None, **options):
            return weir.torch.Optimizer(train.make_model(), config or job(), data or Listed(), progress=False).loader(**options)

        own = random.Random(1)

        def at_random(indices):
            return own.sample(indices, len(indices))

        cases = [
            ("sampler must be a function, .* got RandomSampler", {"sampler": torch.utils.data.RandomSampler(Listed())}),
            ("batch_sampler must be a function, .* in its batches; got BatchSampler",
             {"batch_sampler": torch.utils.data.BatchSampler(range(8), 4, False)}),
            ("both given", {"sampler": sorted, "batch_sampler": train_data.by_length}),
            ("window is for sampler or batch_sampler", {"window": 4}),
            ("window must be a number of batches, at least 1, got 0", {"sampler": sorted, "window": 0}),
            ("cannot be given with an IterableDataset", {"data": Stream(), "sampler": sorted}),
            ("sampler got 88 examples and returned 80, which are not the same", {"sampler": lambda indices: indices[8:]}),
            ("which are not the same", {"sampler": lambda indices: [indices[0]] * len(indices)}),
            ("sampler must return indices, a list of them, got NoneType", {"sampler": lambda indices: None}),
            ("sampler must return indices, a list of them, got list", {"sampler": lambda indices: [indices[:80], indices[80:]]}),
            ("batch_sampler must return indices, batches of them, got list", {"batch_sampler": lambda indices: indices}),
            ("batch_sampler returned 16 examples as batch 0 of its window; each batch has data.batch_size = 8",
             {"batch_sampler": lambda indices: [indices[:16], *([i] for i in indices[16:])]}),
            ("sampler arranged the same examples in two ways", {"sampler": at_random}),
            ("sampler has nothing to arrange, since data.batch_size is 100 .* 92 examples",
             {"sampler": sorted, "config": job(data={"batch_size": 100})}),
        ]
        for text, options in cases:
            with self.subTest(text), self.assertRaisesRegex(weir.ConfigError, text):
                next(loader(**options))


class Shards(Case):
    """Streams with shard()."""

    def test_a_part_has_its_shard(self):
        for num_workers in (0, 1):
            with self.subTest(num_workers=num_workers):
                _, batches = train_data.run(job(), "stream", num_workers)
                shards = [itertools.cycle(range(part, EXAMPLES, PARTS)) for part in range(PARTS)]
                for number, (batch, examples) in enumerate(batches):
                    self.assertEqual(batch, number)
                    self.assertEqual(examples, list(itertools.islice(shards[number % PARTS], len(examples))))
                self.assertEqual(sum(len(examples) for _, examples in batches), ALL)

    def test_same_bits_on_any_workers(self):
        """Also where a worker begins in the middle, and where a process reads ahead."""
        model, _ = train_data.run(job(), "stream")
        self.check_same_bits(model.state_dict(), train_data.run(job(), "stream", num_workers=1)[0].state_dict())
        for flags in ([], ["--die_at=4", "--restart"], ["--num_workers=1"]):
            with self.subTest(flags=flags):
                for state in self.in_a_cluster("stream", job(), *flags)[0]:
                    self.check_same_bits(model.state_dict(), state)

    def test_each_worker_has_its_shard_in_other_modes(self):
        for mode in ("bounded", "async"):
            with self.subTest(mode=mode):
                _, seen = self.in_a_cluster("stream", job(mode))
                self.assertEqual(sorted(number for number, _ in itertools.chain(*seen)), list(range(-(-ALL // BATCH))))
                own = [{i % 2 for _, examples in batches for i in examples} for batches in seen if batches]
                self.assertTrue(all(len(remainders) == 1 for remainders in own), own)
                for batches in seen:
                    examples = [i for _, numbers in batches for i in numbers]
                    if examples:
                        self.assertEqual(examples, list(itertools.islice(itertools.cycle(range(examples[0], EXAMPLES, 2)), len(examples))))

    def test_drop_last(self):
        _, batches = train_data.run(job(data={"batch_size": BATCH, "drop_last": True}), "stream")
        self.assertEqual([len(examples) for _, examples in batches], [BATCH] * (ALL // (BATCH * PARTS) * PARTS))

    def test_what_is_refused(self):
        class Empty(Stream):
            def shard(self, num_shards, index):
                return Empty(self.numbers[:0])

        def first(data, num_workers=0, **fields):
            next(weir.torch.Optimizer(train.make_model(), job(**fields), data, progress=False).loader(num_workers=num_workers))

        cases = [("over a shard of it, ended before the first one", lambda: first(Empty())),
                 ("num_workers is 2, but in sync one process at most", lambda: first(Stream(), 2)),
                 ("must be known before the loop: .* set consistency.parts", lambda: first(
                     Stream(), consistency={"mode": "sync"}, checkpoint={"directory": "/nowhere"})),
                 ("must be known before the loop: .* from TF_CONFIG alone", lambda: next(weir.torch.Optimizer(
                     train.make_model(), job("async", cluster={"workers": 2}), Stream(), cluster="cluster.json", task="worker:0").loader()))]
        for text, call in cases:
            with self.subTest(text), self.assertRaisesRegex(weir.ConfigError, text):
                call()


def each(opt, **options):
    for batch in opt.loader(**options):
        yield batch
        opt.zero_grad()
        opt.step()


if __name__ == "__main__":
    unittest.main()
