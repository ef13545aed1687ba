#!/usr/bin/python3
"""Each example runs, and learns; in one process, and with `weir up` as its first lines say."""
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

    def in_a_cluster(self, program, few, text, least):
        """What two workers on two servers print at the end, which begin with one worker's model."""
        up = support.up(program.with_suffix(".json"), [program, few], "--ps=2", "--workers=2", "--verbose")
        return self.check(up, text, least, times=2)[-2:]

    def test_cnn(self):
        program, few = EXAMPLES / "cnn.py", "--most=600"
        self.check([support.PYTHON, program, few, "--num_workers=1"], "test accuracy:", 0.4)
        found = self.in_a_cluster(program, few, "test accuracy:", 0.4)
        self.assertEqual(found[0], found[1])

    def test_transformer(self):
        # Who always guesses a space is right for 0.155 of the text.
        program, few, text = EXAMPLES / "transformer.py", "--most=4000", "characters guessed right:"
        alone = self.check([support.PYTHON, program, few], text, 0.17)
        self.assertEqual(self.in_a_cluster(program, few, text, 0.17), alone * 2)

    def test_resnet(self):
        program, few = EXAMPLES / "resnet.py", "--most=1200"
        alone = self.check([support.PYTHON, program, few], "test accuracy:", 0.4)
        self.assertEqual(self.in_a_cluster(program, few, "test accuracy:", 0.4), alone * 2)

    def test_clicks(self):
        # Who always guesses the more frequent answer is right for 0.55.
        program, few, text = EXAMPLES / "clicks.py", "--most=12000", "test accuracy:"
        alone = self.check([support.PYTHON, program, few], text, 0.65)
        self.assertEqual(self.in_a_cluster(program, few, text, 0.65), alone * 2)

    def test_evaluate_while_training(self):
        found = self.check([support.PYTHON, EXAMPLES / "evaluate_while_training.py"], "test accuracy", 0.9, times=5)
        self.assertLess(found[0], found[-1])

    def test_they_are_short(self):
        programs = list(EXAMPLES.glob("*.py"))
        self.assertEqual(len(programs), 9)
        for path in programs:
            self.assertLess(len(path.read_text(encoding="utf-8").splitlines()), 100, path)


if __name__ == "__main__":
    unittest.main()
