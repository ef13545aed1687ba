#!/usr/bin/python3
"""Random numbers follow from the job's seed and the batch: the same whichever worker and process makes it, and others for each
batch."""
import json
import pathlib
import random
import unittest

import numpy as np
import support
import torch
import train_draws
import weir

PROGRAM = support.ROOT / "tests/python/train_draws.py"


def job(mode):
    return {"seed": 5, "data": {"batch_size": train_draws.BATCH}, "train": {"epochs": 2}, "consistency": {"mode": mode},
            "optimizer": {"type": "sgd", "learning_rate": 0.01}}


def flat(drawn):
    """All numbers."""
    return np.concatenate([np.ravel(part) for batch in drawn.values() for part in batch])


class OneProcess(unittest.TestCase):
    def test_they_are_the_batchs(self):
        """In every mode, also in the loader's processes, and whatever the program has drawn before."""
        runs = []
        for mode, num_workers in (("sync", 0), ("async", 0), ("async", 2)):
            torch.manual_seed(num_workers)
            runs.append(train_draws.train(job(mode), train_draws.Augmented(), num_workers))
        self.assertEqual(runs[0], runs[1])
        self.assertEqual(runs[0], runs[2])
        self.assertEqual(len(runs[0]), 2 * train_draws.EXAMPLES // train_draws.BATCH)
        self.assertEqual(len(np.unique(flat(runs[0]))), len(flat(runs[0])))

    def test_numpy(self):
        runs = []
        for seed in (0, 1):
            np.random.seed(seed)
            random.seed(seed)
            drawn = {}
            with weir.Client(job("async"), {"w": (2,)}, train_draws.EXAMPLES) as client:
                for step in client.steps():
                    drawn[step.work.batch] = step.seed, np.random.rand(), random.random()
                    step.push({"w": np.zeros(2, np.float32)})
            runs.append(drawn)
        self.assertEqual(runs[0], runs[1])
        self.assertEqual(len(np.unique(flat(runs[0]))), len(flat(runs[0])))


class TwoWorkers(unittest.TestCase):
    def run_job(self, mode, kind, num_workers):
        with support.folder() as folder:
            path = support.write_job(f"{folder}/job.json", **job(mode))
            done = support.run(support.up(path, [PROGRAM, path, folder, kind, num_workers], "--workers=2"))
            self.assertEqual(done.returncode, 0, done.stderr)
            return [json.loads(path.read_text()) for path in pathlib.Path(folder).glob("drawn-*")]

    def test_sync_has_the_numbers_of_one_worker(self):
        one, found = train_draws.train(job("sync"), train_draws.Augmented()), {}
        for drawn in self.run_job("sync", "map", 1):
            found.update(drawn)
        self.assertEqual({int(batch): [np.ravel(part).tolist() for part in of] for batch, of in found.items()},
                         {batch: [np.ravel(part).tolist() for part in of] for batch, of in one.items()})

    def test_no_two_batches_have_the_same(self):
        for kind, num_workers in (("map", 0), ("stream", 0), ("stream", 1)):
            with self.subTest(kind, num_workers=num_workers):
                numbers = np.concatenate([flat(drawn) for drawn in self.run_job("async", kind, num_workers)])
                self.assertEqual(len(np.unique(numbers)), len(numbers))


if __name__ == "__main__":
    unittest.main()
