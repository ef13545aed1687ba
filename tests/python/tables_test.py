#!/usr/bin/python3
"""Rows of embedding tables through weir.Client on NumPy arrays: what a push makes of them, what is read, and errors that say what to
do."""
import unittest

import numpy as np
import support
import weir

EXAMPLES, BATCH, STEPS = 40, 10, 4
RATE, INITIAL = np.float32(0.5), np.float32(0.25)
MODES = ({"mode": "sync", "parts": 1}, {"mode": "bounded", "staleness": 1},
         {"mode": "bounded", "staleness": 2, "prefetch": True}, {"mode": "async"})
TENSORS = {"w": (3,)}
# Anywhere in 64 bits; the first as int64 is -1.
KEYS = np.array([2**64 - 1, 7, 0, 2**40], np.uint64)


def table(name, dim, **more):
    return {"name": name, "dim": dim, "init": {"type": "constant", "value": float(INITIAL)},
            "optimizer": {"type": "sgd", "learning_rate": float(RATE)}, **more}


def job(**more):
    fields = {"data": {"batch_size": BATCH}, "train": {"examples": STEPS * BATCH}, "consistency": {"mode": "sync"},
              "optimizer": {"type": "sgd", "learning_rate": 1}, "tables": [table("users", 2), table("items", 5)]}
    return {**fields, **more}


def to_read(keys, dim):
    return keys, np.full((len(keys), dim), np.nan, np.float32)


class Rows(unittest.TestCase):
    def test_each_mode(self):
        """Rows that are read and pushed step by step are those of the formula, with the dense weights; at the end, too."""
        for consistency in MODES:
            for servers in (1, 2):
                with self.subTest(consistency=consistency, servers=servers):
                    expected = np.full((len(KEYS), 2), INITIAL, np.float32)
                    result, final = {"w": np.empty(3, np.float32)}, {"users": to_read(KEYS, 2)}
                    with weir.Client(job(consistency=consistency), TENSORS, EXAMPLES, servers=servers) as client:
                        self.assertEqual(dict(client.tables), {"users": 2, "items": 5})
                        for step in client.steps(result, final):
                            if not consistency.get("prefetch"):
                                np.testing.assert_array_equal(step.rows("users", KEYS), expected)
                            gradient = np.arange(8, dtype=np.float32).reshape(4, 2) + step.work.batch
                            step.push({"w": np.ones(3, np.float32)}, rows={"users": (KEYS, gradient)})
                            expected -= RATE * gradient
                    np.testing.assert_array_equal(final["users"][1], expected)
                    np.testing.assert_array_equal(result["w"], [-STEPS] * 3)

    def test_the_calls(self):
        """Keys in any order, several times, as int64; gradients of one key are summed; reading a clock twice."""
        for servers in (1, 3):
            with self.subTest(servers=servers), weir.Client(job(), TENSORS, EXAMPLES, servers=servers) as client:
                work = client.next_work()
                w = {"w": np.empty(3, np.float32)}
                rows = {"items": to_read(KEYS[[3, 0, 3]], 5)}
                base = client.pull(0, w, rows).result()
                np.testing.assert_array_equal(rows["items"][1], np.full((3, 5), INITIAL))
                for _ in range(2):
                    again = {"users": to_read(KEYS, 2), "items": to_read(KEYS[:1], 5)}
                    self.assertEqual(client.pull_rows(0, again).result().version, 0)
                    np.testing.assert_array_equal(again["users"][1], np.full((4, 2), INITIAL))
                keys = np.array([7, -1, 7, 7], np.int64)
                gradient = np.array([[1, 2], [3, 4], [10, 20], [100, 200]], np.float32)
                read = {"users": to_read(KEYS, 2)}
                pushed, weights = client.push_pull(work, base, {"w": np.ones(3, np.float32)}, w,
                                                   rows={"users": (keys, gradient)}, next_rows=read).result()
                self.assertTrue(pushed.applied)
                self.assertEqual(weights.version, 1)
                expected = INITIAL - RATE * np.array([[3, 4], [111, 222], [0, 0], [0, 0]], np.float32)
                np.testing.assert_array_equal(read["users"][1], expected)
                newest = {"users": to_read(KEYS[::-1], 2)}  # not contiguous
                self.assertEqual(client.snapshot(None, newest).result().version, 1)
                np.testing.assert_array_equal(newest["users"][1], expected[::-1])
                both = {"users": to_read(KEYS, 2)}
                client.snapshot(w, both).result()
                np.testing.assert_array_equal(w["w"], [-1] * 3)
                np.testing.assert_array_equal(both["users"][1], expected)

    def test_keys_that_must_be_copied(self):
        """A push reads them although nobody else has the copies."""
        n = 1000
        for call in ("push", "push_pull"):
            with self.subTest(call), weir.Client(job(), TENSORS, EXAMPLES) as client:
                work, w = client.next_work(), {"w": np.zeros(3, np.float32)}
                base = client.pull(0, w).result()
                keys, others = (np.arange(i, 2 * n + i, dtype=np.uint64)[::2] for i in (0, 5001))
                rows = {"users": (keys, np.ones((n, 2), np.float32))}
                if call == "push":
                    client.push(work, base, w, rows=rows).result()
                else:
                    client.push_pull(work, base, w, w, rows=rows, next_rows={"users": to_read(others, 2)}).result()
                read = {"users": to_read(keys, 2)}
                client.snapshot(None, read).result()
                np.testing.assert_array_equal(read["users"][1], np.full((n, 2), INITIAL - RATE))

    def test_clipping(self):
        """train.clip_norm is about the norm of tensors and rows together, with a key's gradients summed."""
        result, final = {"w": np.empty(3, np.float32)}, {"users": to_read(KEYS, 2)}
        gradient = np.array([[1, 0], [1, 0], [0, 0]], np.float32)
        with weir.Client(job(train={"examples": BATCH, "clip_norm": 1.5}), TENSORS, EXAMPLES) as client:
            for step in client.steps(result, final):
                step.push({"w": np.array([1, 2, 0], np.float32)}, rows={"users": (KEYS[[1, 1, 0]], gradient)})
        # The norm is sqrt(1 + 4 + 2^2) = 3.
        np.testing.assert_allclose(result["w"], [-0.5, -1, 0], rtol=1e-6)
        np.testing.assert_allclose(final["users"][1], INITIAL - RATE * np.array([[0, 0], [1, 0], [0, 0], [0, 0]]), rtol=1e-6)
        np.testing.assert_array_equal(gradient, [[1, 0], [1, 0], [0, 0]])  # the caller's own

    def test_rows_that_are_read_early(self):
        """They are those of the next step, which reads no others; where one is missing it reads all."""
        for consistency in MODES:
            with self.subTest(consistency=consistency), weir.Client(job(consistency=consistency), TENSORS, EXAMPLES) as client:
                calls, pull_rows = [], client.pull_rows
                client.pull_rows = lambda clock, rows: calls.append((clock, len(rows["users"][0]))) or pull_rows(clock, rows)
                for step in client.steps():
                    clock = step.work.clock
                    step.prefetch_rows({"users": KEYS[[1, 0, 1]] if clock < 2 else KEYS[:1]})
                    rows = step.rows("users", KEYS[[0, 1, 0]])
                    if consistency["mode"] == "sync":
                        np.testing.assert_array_equal(rows, np.full((3, 2), INITIAL - RATE * clock))
                    step.push({"w": np.ones(3, np.float32)}, rows={"users": (KEYS, np.ones((4, 2), np.float32))})
                # By step: what it asks for early, and what it reads itself, if anything.
                self.assertEqual(calls, [(1, 2), (0, 3), (2, 2), (3, 1), (3, 3)])

    def test_a_step_that_is_past(self):
        """Its rows are zeros, and nothing is pushed."""
        calls = []

        class Past:
            tables = {"users": 2}
            past = True

            def __init__(self):
                self.client, self.clip_norm, self.tables = self, 0, weir.Tables(weir.Job(job()))

            def refuse_gradient(self, call):
                pass

            def pull_rows(self, clock, rows):
                calls.append(clock)
                return self

            def result(self):
                return self

            def early_rows(self, *_):
                return None

            def set_computing(self, computes):
                pass

        step = weir.Step(Past(), weir.Work(5, 0, 0, BATCH, BATCH, 0, True), {}, None)
        for _ in range(2):
            np.testing.assert_array_equal(step.rows("users", KEYS), np.zeros((4, 2)))
        self.assertEqual(calls, [5])
        step.push({}, rows={})
        self.assertTrue(step.pushed)


class Errors(unittest.TestCase):
    def error(self, text, call, kind=weir.ConfigError):
        with self.assertRaises(kind) as caught:
            call()
        self.assertIn(text, str(caught.exception))

    def test_arrays(self):
        values = np.zeros((4, 2), np.float32)
        read_only = values.copy()
        read_only.flags.writeable = False
        cases = [("no table 'visits': it has users, items", {"visits": (KEYS, values)}),
                 ("users: keys must be an array of int64 or uint64 with one dimension, got int32", {"users": (KEYS.astype(np.int32), values)}),
                 ("got uint64 of shape (2, 2)", {"users": (KEYS.reshape(2, 2), values)}),
                 ("got list", {"users": ([1, 2], values)}),
                 ("users: values must be float32 of shape (4, 2) (keys, dim), C-contiguous and writeable; got float64",
                  {"users": (KEYS, values.astype(np.float64))}),
                 ("items: values must be float32 of shape (4, 5)", {"items": (KEYS, values)}),
                 ("not C-contiguous", {"users": (KEYS, np.zeros((2, 4), np.float32).T)}),
                 ("read-only", {"users": (KEYS, read_only)}),
                 ("values must be an array, got NoneType", {"users": (KEYS, None)})]
        with weir.Client(job(), TENSORS, EXAMPLES) as client:
            for text, rows in cases:
                with self.subTest(text):
                    self.error(text, lambda: client.pull_rows(0, rows))
            step = next(client.steps())
            self.error("no table 'visits'", lambda: step.rows("visits", KEYS))
            self.error("items: values must be float32", lambda: step.push({"w": np.zeros(3, np.float32)},
                                                                          rows={"items": (KEYS, values)}))

    def test_no_tables(self):
        with weir.Client(job(tables=[]), TENSORS, EXAMPLES) as client:
            self.assertEqual(len(client.tables), 0)
            self.error("the job has no table 'users': it has none; its config lists them in `tables`",
                       lambda: client.pull_rows(0, {"users": to_read(KEYS, 2)}))

    def test_a_gradient_that_is_not_finite(self):
        gradient = np.zeros((4, 2), np.float32)
        gradient[1, 1] = np.inf

        def run():
            with weir.Client(job(), TENSORS, EXAMPLES) as client:
                for step in client.steps():
                    step.push({"w": np.zeros(3, np.float32)}, rows={"users": (KEYS, gradient)})

        self.error("table 'users', key 7, column 1", run, weir.Diverged)


if __name__ == "__main__":
    unittest.main()
