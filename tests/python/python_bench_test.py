#!/usr/bin/python3
"""`./dev bench python` runs all its rows, on tiny models and without regard to its numbers; and how it judges them."""
import contextlib
import io
import json
import pathlib
import sys
import unittest

import support

sys.path.insert(0, str(support.ROOT / "tests/bench/python"))

import python_bench  # noqa: E402, the line before says where it is
import environments  # noqa: E402, python_bench says where it is
import processes  # noqa: E402
import race  # noqa: E402


class Rows(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(support.folder())
        environments.ROOT, environments.BIN = support.ROOT, support.ROOT
        environments.CACHE = pathlib.Path(self.folder) / "cache"

    def measure(self, row, contestants):
        """Runs the row, and returns the targets of its table."""
        file, shown = f"{self.folder}/bench.json", io.StringIO()
        with contextlib.redirect_stdout(shown):
            python_bench.main([f"--rows={row}", "--rounds=2", "--seconds=0.01", "--elements=5000", "--images=300", f"--json={file}"])
        found = json.loads(pathlib.Path(file).read_text(encoding="utf-8"))
        self.assertEqual(found["failed"], {}, shown.getvalue())
        self.assertEqual({name: len(values) for name, values in found["step_seconds"][row].items()}, contestants)
        for values in found["step_seconds"][row].values():
            self.assertGreater(min(values), 0)
        for target in found["targets"]:
            self.assertIn(f"| {row} | {target['work']} | {target['value']:.2f} | ", shown.getvalue())
        return [target["work"] for target in found["targets"]]

    def test_exchange(self):
        names = [python_bench.COPIED, python_bench.IN_PLACE, python_bench.TENSORS, python_bench.OPTIMIZER, python_bench.NUMPY]
        self.assertEqual(len(self.measure("exchange", dict.fromkeys(names, 2))), 2)

    def test_training(self):
        for example in ["transformer", "resnet"]:
            with self.subTest(example):
                self.assertEqual(len(self.measure(example, {python_bench.WEIR: 2, python_bench.TORCH: 2})), 1)

    def test_mlp(self):
        rpc = [f"{python_bench.RPC}, {mode}, {transport}" for mode in ["async", "sync"] for transport in ["shm", "tcp"]]
        # Without TensorFlow.
        self.assertEqual(len(self.measure("mlp", dict.fromkeys([python_bench.WEIR_SYNC, python_bench.WEIR_ASYNC, python_bench.ALONE, python_bench.DDP, *rpc], 1))), 2)

    def test_watched(self):
        ways = [python_bench.WATCHED, python_bench.HOOKED, python_bench.UNWATCHED]
        self.assertEqual(len(self.measure("watched", dict.fromkeys(ways, 2))), 1)

    def test_a_contestant_that_ends_is_named_with_its_last_words(self):
        for connects in [False, True]:
            broken = race.Contestant("broken one", ["/bin/sh", "-c", "echo it cannot be >&2; exit 3"], connects)
            with self.assertRaisesRegex(processes.Failed, r"(?s)^broken one .*it cannot be"):
                race.race([broken], 1, 0.01, 60, lambda _: None)


class Judge(unittest.TestCase):
    def test_by_round(self):
        target = python_bench.Target("work", "ours", "theirs", 1.5)
        # The ratio of the medians would be 2.
        found = python_bench.judge(target, {"ours": [1, 2, 9], "theirs": [1, 1, 9]})
        self.assertEqual((found["value"], found["samples"], found["met"]), (1, [1, 2, 1], True))
        self.assertFalse(python_bench.judge(target, {"ours": [2, 2, 2], "theirs": [1, 1, 1]})["met"])

    def test_of_several_the_fastest_counts(self):
        target = python_bench.Target("work", "ours", "theirs", 3, at_least=True)
        found = python_bench.judge(target, {"ours": [1], "theirs, one": [4], "theirs, other": [2]})
        self.assertEqual((found["value"], found["met"]), (2, False))

    def test_what_was_left_out_is_not_judged(self):
        self.assertIsNone(python_bench.judge(python_bench.Target("work", "ours", "theirs", 1), {"ours": [1]}))


if __name__ == "__main__":
    unittest.main()
