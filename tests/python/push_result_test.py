#!/usr/bin/python3
"""step.batches and step.push_result() of weir.Client: local steps of a program in NumPy."""
import random
import unittest

import numpy as np
import support  # noqa: F401
import weir

EXAMPLES, BATCH, STEPS, SEED = 48, 4, 3, 5
X = np.random.default_rng(1).standard_normal((EXAMPLES, 3)).astype(np.float32)
Y = X @ np.float32([1, -2, 0.5])


def job(**more):
    return {"seed": SEED, "data": {"batch_size": BATCH}, "train": {"epochs": 2}, "local": {"steps": STEPS},
            "consistency": {"mode": "sync", "parts": 2}, "optimizer": {"type": "sgd", "learning_rate": 0.5}, **more}


def descend(w, indices):
    """A step of the program's own."""
    error = X[indices] @ w - Y[indices]
    w -= np.float32(0.1) * (X[indices].T @ error / np.float32(len(indices)))


def steps_of(fields):
    client = weir.Client(fields, {"w": (3,), "seen": weir.Tensor((), buffer=True)}, EXAMPLES)
    with client:
        yield from client.steps()


class PushResult(unittest.TestCase):
    def test_a_serial_loop(self):
        trained = {}
        with weir.Client(job(), {"w": (3,), "seen": weir.Tensor((), buffer=True)}, EXAMPLES, servers=2) as client:
            for step in client.steps(trained):
                w, seen = step.weights["w"].copy(), step.weights["seen"].copy()
                numbers = []
                for batch in step.batches:
                    numbers += batch.examples.tolist()
                    descend(w, batch.examples)
                    seen += 1
                self.assertEqual(numbers, step.examples.tolist())
                step.push_result({"w": w, "seen": seen}, loss=1.0)
        order, w = weir.ExampleOrder(EXAMPLES, SEED), np.zeros(3, np.float32)
        for first in range(0, 2 * EXAMPLES, 2 * STEPS * BATCH):
            mean = np.zeros(3, np.float32)
            for part in range(2):
                own = w.copy()
                for i in range(STEPS):
                    descend(own, order(first + (part * STEPS + i) * BATCH, BATCH))
                mean += np.float32(0.5) * (w - own)
            w -= np.float32(0.5) * mean
        self.assertTrue(np.array_equal(trained["w"], w), (trained["w"], w))
        self.assertEqual(trained["seen"], 2 * EXAMPLES / (2 * STEPS * BATCH) * STEPS)

    def test_async(self):
        trained = {}
        with weir.Client(job(consistency={"mode": "async"}, train={"epochs": 20}), {"w": (3,)}, EXAMPLES) as client:
            for step in client.steps(trained):
                w = step.weights["w"].copy()
                for batch in step.batches:
                    descend(w, batch.examples)
                step.push_result({"w": w})
        self.assertLess(np.abs(trained["w"] - [1, -2, 0.5]).max(), 0.05)

    def test_seeds(self):
        """Of all batches, whatever round they are in, and of the global random numbers."""
        seeds, drawn = {}, {}
        for steps in (1, 3):
            seeds[steps], drawn[steps] = [], []
            for step in steps_of(job(local={"steps": steps}, consistency={"mode": "sync", "parts": 1}, train={"epochs": 1})):
                if steps > 1:
                    self.assertEqual(step.seed, next(step.batches).seed)
                for batch in step.batches:
                    seeds[steps].append(batch.seed)
                    drawn[steps].append((np.random.rand(), random.random()))
                step.push_result(step.weights)
        self.assertEqual(seeds[1], seeds[3])
        self.assertEqual(len(set(seeds[1])), EXAMPLES // BATCH)
        self.assertEqual(drawn[1], drawn[3])

    def test_a_short_end(self):
        sizes = []
        for step in steps_of(job(train={"examples": 2 * STEPS * BATCH + BATCH + 1})):
            sizes.append([batch.work.examples for batch in step.batches])
            step.push_result(step.weights)
        self.assertEqual(sizes, [[4, 4, 4], [4, 4, 4], [4, 1]])

    def refused(self, words, use, error=weir.ConfigError, **fields):
        with self.assertRaises(error) as caught:
            for step in steps_of(job(**fields)):
                use(step)
        self.assertIn(words, str(caught.exception))

    def test_refused(self):
        zeros = {"w": np.zeros(3, np.float32), "seen": np.zeros((), np.float32)}
        self.refused("push() is for gradients, but local.steps is 3", lambda s: s.push(zeros))
        self.refused("ready() is for gradients", lambda s: s.ready("w"))
        self.refused("train.clip_norm of the job clips", lambda s: s.push_result(zeros), train={"epochs": 1, "clip_norm": 1.0})
        self.refused("train.clip_value of the job clips", lambda s: s.push_result(zeros), train={"epochs": 1, "clip_value": 1.0})
        self.refused("local.keep_state of the job is for steps that Weir takes", lambda s: s.push_result(zeros),
                     local={"steps": 3, "keep_state": True})
        self.refused("push_result: w must be float32 of shape (3,)", lambda s: s.push_result({**zeros, "w": np.zeros(3)}))
        self.refused("push_result: seen must be an array", lambda s: s.push_result({"w": zeros["w"]}))
        self.refused("pushed already", lambda s: (s.push_result(zeros), s.push_result(zeros)), weir.Error)
        self.refused("has embedding tables", lambda s: s.push_result(zeros), local={"steps": 1}, tables=[{"name": "t", "dim": 2}])
        self.refused("cannot follow on ready()", lambda s: (s._loop.__setattr__("overlaps", True), s.gradient.flat.fill(0), s.ready("w"),
                                                            s.push_result(zeros)), local={"steps": 1})

    def test_values_that_are_not_finite(self):
        """As those of gradients: the job ends, or the push has no effect."""
        nan = {"w": np.full(3, np.nan, np.float32), "seen": np.zeros((), np.float32)}
        self.refused("the gradient of w[0] is NaN", lambda s: s.push_result(nan), weir.Diverged)
        trained, first = {}, True
        with weir.Client(job(consistency={"mode": "sync", "parts": 1, "on_nonfinite": "reject"}), {"w": (3,)}, EXAMPLES) as client:
            for step in client.steps(trained):
                step.push_result({"w": np.full(3, np.nan if first else 1, np.float32)})
                first = False
        self.assertTrue(np.isfinite(trained["w"]).all() and trained["w"].any())


if __name__ == "__main__":
    unittest.main()
