#!/usr/bin/python3
"""push(weight=): in sync a step's mean is by the weights of its pushes, on tensors and rows, to the bit on any number of servers; what
cannot be a weight is refused at the call."""
import hashlib
import unittest

import numpy as np
import support  # pylint: disable=unused-import
import weir

EXAMPLES, BATCH, PARTS, STEPS, INPUTS = 40, 10, 3, 5, 50
KEYS = np.array([3, 2**40, 11], np.uint64)
# Of the batches in turn; None: the batch's examples.
WEIGHTS = (0.5, None, np.float32(17.25), 3, 1e-3, 6e4, 1.0)


def job(**more):
    table = {"name": "t", "dim": 2, "init": {"type": "constant", "value": 0.5}, "optimizer": {"type": "sgd", "learning_rate": 1}}
    fields = {"data": {"batch_size": BATCH}, "train": {"steps": STEPS}, "consistency": {"mode": "sync", "parts": PARTS},
              "optimizer": {"type": "sgd", "learning_rate": 1}, "server": {"min_shard_kib": 0}, "tables": [table]}
    return {**fields, **more}


def values_of(batch):
    random = np.random.default_rng(batch)
    return random.normal(size=INPUTS).astype(np.float32), random.normal(size=(len(KEYS), 2)).astype(np.float32)


def serially():
    w, rows = np.zeros(INPUTS, np.float32), np.full((len(KEYS), 2), 0.5, np.float32)
    for step in range(STEPS):
        parts = range(step * PARTS, (step + 1) * PARTS)
        weights = [float(WEIGHTS[batch % len(WEIGHTS)] or BATCH) for batch in parts]
        for into, which in ((w, 0), (rows, 1)):
            mean = None
            for batch, weight in zip(parts, weights):
                term = np.float32(weight / sum(weights)) * values_of(batch)[which]
                mean = term if mean is None else mean + term
            into -= mean
    return w, rows


def train(push=lambda step, gradient, rows, weight: step.push({"w": gradient}, rows=rows, weight=weight), servers=1, **more):
    w, rows = np.empty(INPUTS, np.float32), np.empty((len(KEYS), 2), np.float32)
    with weir.Client(job(**more), {"w": (INPUTS,)}, EXAMPLES, servers=servers) as client:
        for step in client.steps({"w": w}, {"t": (KEYS, rows)}):
            gradient, of_rows = values_of(step.work.batch)
            push(step, gradient, {"t": (KEYS, of_rows)}, WEIGHTS[step.work.batch % len(WEIGHTS)])
    return w, rows


class Weights(unittest.TestCase):
    def test_the_weighted_mean(self):
        expected = serially()
        hashes = set()
        for servers in (1, 2, 3):
            with self.subTest(servers=servers):
                trained = train(servers=servers)
                for is_now, should_be in zip(trained, expected):
                    np.testing.assert_array_equal(is_now, should_be)
                hashes.add(hashlib.sha256(trained[0].tobytes()).hexdigest())
        self.assertEqual(len(hashes), 1)
        # So that weights which count nothing would show.
        unweighted = train(lambda step, gradient, rows, _: step.push({"w": gradient}, rows=rows))
        for is_now, should_be in zip(unweighted, expected):
            self.assertGreater(np.abs(is_now - should_be).max(), 0.1)

    def test_the_parts_of_the_loop(self):
        """Client.push() and push_pull() have it, too."""
        result = {"w": np.empty(2, np.float32)}
        with weir.Client(job(tables=[], train={"steps": 1}, consistency={"mode": "sync", "parts": 2}), {"w": (2,)}, EXAMPLES) as client:
            first = client.next_work()
            base = client.pull(first.clock, result).result()
            pushed = client.push(first, base, {"w": np.full(2, 8, np.float32)}, weight=0.25)
            second = client.next_work()
            _, weights = client.push_pull(second, base, {"w": np.full(2, 4, np.float32)}, result, weight=0.75).result()
            self.assertTrue(pushed.result().applied)
            self.assertEqual(weights.version, 1)
            self.assertIsNone(client.next_work())
        np.testing.assert_array_equal(result["w"], [-5, -5])

    def test_what_is_refused(self):
        """At the call, which may be made again without it."""
        def refused(step, gradient, rows, weight):
            for wrong, words in ((0, "weight must be above 0, and finite; got 0"), (np.zeros(1), "above 0, and finite; got 0"),
                                 (-1, "above 0 and at most 1e\\+30; got -1"), (float("nan"), "at most 1e\\+30; got nan"),
                                 (2e30, "at most 1e\\+30; got 2e\\+30"), (np.ones(2), "weight must be one number; got ndarray of shape"),
                                 ("1", "weight must be one number; got str")):
                with self.assertRaisesRegex(weir.ConfigError, words):
                    step.push({"w": gradient}, rows=rows, weight=wrong)
            step.push({"w": gradient}, rows=rows, weight=weight)

        for is_now, should_be in zip(train(refused), serially()):
            np.testing.assert_array_equal(is_now, should_be)

    def test_other_modes(self):
        """There a push is applied alone."""
        for consistency in ({"mode": "async"}, {"mode": "bounded", "staleness": 1}, {"mode": "bounded", "staleness": 1, "prefetch": True}):
            with self.subTest(consistency=consistency):
                steps = []

                def push(step, gradient, rows, weight):
                    if weight is not None and len(steps) < 3:
                        with self.assertRaisesRegex(weir.ConfigError, "weight: got .*, but with consistency.mode"):
                            step.push({"w": gradient}, rows=rows, weight=weight)
                    steps.append(step)
                    step.push({"w": gradient}, rows=rows)

                train(push, consistency=consistency)
                self.assertEqual(len(steps), STEPS)

    def test_a_gradient_that_leaves_in_parts(self):
        """It leaves before its weight is known."""
        wide = 70_000
        with weir.Client(job(tables=[], train={"steps": 1}, wire={"chunk_kib": 256}), {"w": (wide,)}, EXAMPLES) as client:
            with self.assertRaisesRegex(weir.Error, "since ready\\(\\) was called"):
                for step in client.steps():
                    step.gradient["w"][:] = 1
                    step.ready("w")
                    step.push(weight=2)


if __name__ == "__main__":
    unittest.main()
