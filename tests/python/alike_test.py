#!/usr/bin/python3
"""Workers with other training sets, or other programs, are refused when they join; sets that are the same but for random numbers are
not."""
import random
import unittest

import numpy as np
import support
import torch
import train_alike
from weir import fingerprints

PROGRAM = support.ROOT / "tests/python/train_alike.py"


def read_twice(data, count=8):
    return fingerprints.read_twice(lambda: [data[i] for i in range(count)], data)


class Values(unittest.TestCase):
    def digest(self, value):
        return fingerprints.of_examples(value, value)

    def test_what_can_be_compared(self):
        class Named(dict):
            pass

        values = [None, 1, 2, True, 1.5, "1", "2", b"1", [1, 2], [[1], 2], (2, 1), {"a": 1}, {"b": 1}, Named(c=[np.int64(3)]), {1, 2},
                  np.arange(3), np.arange(3.0), np.arange(3).reshape(3, 1), np.float32(1), torch.ones(2), torch.ones(2).bfloat16() * 3,
                  np.array(["a"], dtype=object), np.array(["b"], dtype=object), torch.tensor(3.0, requires_grad=True)]
        found = [self.digest(value) for value in values]
        self.assertNotIn({}, found)
        self.assertEqual(len({str(f) for f in found}), len(values))
        self.assertEqual(self.digest(torch.arange(4)), self.digest(np.arange(4)))

    def test_what_cannot(self):
        deep = []
        for _ in range(50):
            deep = [deep]
        for value in (object(), [object()], {"a": {"b": object()}}, deep, lambda: 0):
            self.assertEqual(self.digest(value), {})

    def test_subsets(self):
        numbers = train_alike.Numbers()
        subset = torch.utils.data.Subset(numbers, [3, 1, 2])
        whole = torch.utils.data.ConcatDataset([subset, torch.utils.data.Subset(subset, [1, 0])])
        other = torch.utils.data.ConcatDataset([subset, torch.utils.data.Subset(subset, [0, 1])])
        self.assertEqual(fingerprints.of_subset(numbers), {})
        self.assertNotEqual(fingerprints.of_subset(whole), {})
        self.assertNotEqual(fingerprints.of_subset(whole), fingerprints.of_subset(other))


class RandomExamples(unittest.TestCase):
    def test_generators_go_on_where_they_were(self):
        own = random.Random(3)
        data = train_alike.Numbers(lambda: torch.rand(()).item() + np.random.rand() + random.random() + own.random())
        data.own = [{"generators": (own, np.random.RandomState(2), np.random.default_rng(1), torch.Generator())}]

        def draw():
            return [torch.rand(()).item(), np.random.rand(), random.random(), own.random(), data.own[0]["generators"][1].rand(),
                    data.own[0]["generators"][2].random(), torch.rand((), generator=data.own[0]["generators"][3]).item()]

        draws = []
        for compares in (False, True):
            for generator in (torch.default_generator, data.own[0]["generators"][3]):
                generator.manual_seed(1)
            np.random.seed(1)
            random.seed(1)
            own.seed(1)
            data.own[0]["generators"][1].seed(1)
            data.own[0]["generators"][2].bit_generator.state = np.random.PCG64(1).state
            if compares:
                self.assertNotEqual(fingerprints.of_examples(*read_twice(data)), {})
            draws.append(draw())
        self.assertEqual(*draws)

    def test_the_same_numbers_everywhere(self):
        """Where the examples are random by generators that can be seeded, all workers compare the same."""
        for make in (lambda: train_alike.training_set("augmented", 0), train_alike.OwnGenerator):
            found = []
            for seed in (1, 2):
                torch.manual_seed(seed)
                np.random.seed(seed)
                found.append(fingerprints.of_examples(*read_twice(make())))
            self.assertNotEqual(found[0], {})
            self.assertEqual(*found)

    def test_other_randomness_is_left_out(self):
        self.assertEqual(fingerprints.of_examples(*read_twice(train_alike.training_set("of_the_system", 0))), {})


class TwoWorkers(unittest.TestCase):
    def up(self, kind, num_workers, mode):
        with support.folder() as folder:
            job = support.write_job(f"{folder}/job.json", seed=5, data={"batch_size": 4}, train={"epochs": 1},
                                    consistency={"mode": mode}, optimizer={"type": "sgd", "learning_rate": 0.01})
            return support.run(support.up(job, [PROGRAM, job, kind, num_workers], "--workers=2"))

    def test_other_training_sets(self):
        for kind, num_workers, mode, name in (("split", 0, "sync", "the training set's"), ("shard", 1, "async", "the training set's"),
                                              ("other_values", 2, "async", "the training set's examples"),
                                              ("arrays", 0, "async", "the training set's examples"), ("version", 0, "async", "the program")):
            with self.subTest(kind):
                done = self.up(kind, num_workers, mode)
                self.assertEqual(done.returncode, 78, done.stderr)
                self.assertRegex(done.stderr, f"the workers differ in {name}.*: worker:[01] has \\w+, and worker:[01], which joined "
                                              "before, has \\w+")

    def test_the_same(self):
        for kind, num_workers in (("same", 1), ("augmented", 1), ("own_generator", 2), ("of_the_system", 0)):
            with self.subTest(kind):
                done = self.up(kind, num_workers, "sync")
                self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
