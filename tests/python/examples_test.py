#!/usr/bin/python3
"""Each example runs, and learns; in one process, and with `weir up` as its first lines say."""
import pathlib
import re
import unittest

import support

EXAMPLES = support.ROOT / "examples"


class Examples(unittest.TestCase):
    def check(self, command, text, least, times=1):
        done = support.run(list(map(str, command)))
        self.assertEqual(done.returncode, 0, done.stderr)
        found = [float(n) for n in re.findall(text + r" ([0-9.]+)", done.stdout + done.stderr)]
        self.assertGreaterEqual(len(found), times, done.stdout + done.stderr)
        self.assertGreater(found[-1], least)
        return found

    def test_logistic_regression(self):
        program = EXAMPLES / "logistic_regression.py"
        text = "accuracy on the training set:"
        self.check([support.PYTHON, program], text, 0.9)
        self.check(support.up(program.with_suffix(".json"), [program], "--ps=2", "--workers=2", "--verbose"), text, 0.9, times=2)

    def test_cnn(self):
        program, few = EXAMPLES / "cnn.py", "--most=600"
        self.check([support.PYTHON, program, few, "--num_workers=1"], "test accuracy:", 0.4)
        up = support.up(program.with_suffix(".json"), [program, few], "--ps=2", "--workers=2", "--verbose")
        found = self.check(up, "test accuracy:", 0.4, times=2)
        self.assertEqual(found[-1], found[-2])

    def test_evaluate_while_training(self):
        found = self.check([support.PYTHON, EXAMPLES / "evaluate_while_training.py"], "test accuracy", 0.9, times=5)
        self.assertLess(found[0], found[-1])

    def test_they_are_short(self):
        programs = list(EXAMPLES.glob("*.py"))
        self.assertEqual(len(programs), 3)
        for path in programs:
            self.assertLess(len(path.read_text(encoding="utf-8").splitlines()), 100, path)


if __name__ == "__main__":
    unittest.main()
