#!/usr/bin/python3
"""The line that shows how far a job in this process is."""
import io
import os
import pty
import subprocess
import textwrap
import unittest

import support
from weir import Work
from weir.progress import ProgressLine, is_live

TRAIN = """
    import numpy as np
    import weir
    job = {"data": {"batch_size": 4}, "train": {"epochs": 3}, "consistency": {"mode": "sync", "parts": 2}}
    with weir.Client(job, {"w": (3,)}, 16, **MORE) as client:
        for n, step in enumerate(client.steps()):
            if n == STOP: raise ValueError("stopped")
            step.gradient.flat[:] = 0
            step.push(loss=0.25)
"""


def work(first, examples=4, total=48):
    return Work(clock=0, batch=first // 4, first_example=first, examples=examples, examples_left=total - first, part=0,
                last_of_clock=True)


class Line(unittest.TestCase):
    def setUp(self):
        self.now, self.out = 100.0, io.StringIO()
        self.line = ProgressLine(self.out, 16, clock=lambda: self.now)

    def drawn(self):
        """The newest drawing, as it is seen."""
        return self.out.getvalue().rsplit("\r", 1)[-1].rstrip()

    def test_what_it_shows(self):
        self.now += 2
        self.line.add(work(0), 0.5)
        self.assertEqual(self.drawn(), "epoch 1/3    8 %  loss 0.5  2 examples/s  0:22 left")
        # Not again so soon; then with the mean since the last drawing.
        self.now += 0.1
        self.line.add(work(4), 1.0)
        self.assertIn("loss 0.5", self.drawn())
        self.now += 1.9
        self.line.add(work(8, examples=8), 4.0)
        self.assertEqual(self.drawn(), "epoch 1/3   33 %  loss 3  4 examples/s  0:08 left")
        self.now += 3600
        self.line.add(work(16, examples=32), None)
        self.line.close()
        self.assertEqual(self.drawn(), "epoch 3/3  100 %  loss 3  0 examples/s  1:00:04")
        self.assertTrue(self.out.getvalue().endswith("\n"))

    def test_each_drawing_covers_the_last(self):
        self.line.add(work(0), 0.123456)
        longer = len(self.drawn())
        self.now += 10
        self.line.add(work(4), 1)
        self.assertGreaterEqual(len(self.out.getvalue().rsplit("\r", 1)[-1]), longer)

    def test_nothing_was_done(self):
        self.line.close()
        self.assertEqual(self.out.getvalue(), "")

    def test_a_terminal_that_is_gone(self):
        class Gone(io.StringIO):
            def write(self, text):
                raise OSError(5, "Input/output error")
        line = ProgressLine(Gone(), 16)
        line.add(work(0), 0.5)
        line.close()


class Process(unittest.TestCase):
    def train(self, *, terminal, more=None, stop=-1):
        """What a job's process writes to stderr."""
        script = textwrap.dedent(TRAIN).replace("MORE", repr(more or {})).replace("STOP", str(stop))
        command = [support.PYTHON, "-c", script]
        if not terminal:
            return support.run(command).stderr
        ours, theirs = pty.openpty()
        process = subprocess.Popen(command, stderr=theirs)
        self.addCleanup(process.kill)
        os.close(theirs)
        seen = b""
        try:
            while data := os.read(ours, 4096):
                seen += data
        except OSError:
            pass  # all of the other side is closed
        os.close(ours)
        process.wait(support.LIMIT_SECONDS)
        return seen.decode()

    def test_in_a_terminal(self):
        seen = self.train(terminal=True)
        self.assertRegex(seen, r"\repoch 3/3  100 %  loss 0\.25  [\d,]+ examples/s  0:\d\d *\r?\n$")

    def test_elsewhere(self):
        self.assertEqual(self.train(terminal=False), "")

    def test_it_is_switched(self):
        self.assertEqual(self.train(terminal=True, more={"progress": False}), "")
        self.assertIn("100 %", self.train(terminal=False, more={"progress": True}))

    def test_an_error_begins_on_a_line_of_its_own(self):
        self.assertRegex(self.train(terminal=True, stop=5), r"examples/s  0:\d\d left *\r?\n(.*\n)*Traceback")

    def test_a_notebook(self):
        class OutStream(io.StringIO):
            pass

        OutStream.__module__ = "ipykernel.iostream"
        self.assertTrue(is_live(OutStream()))
        self.assertFalse(is_live(io.StringIO()))
        self.assertFalse(is_live(None))

    def test_a_cluster_has_none(self):
        with support.folder() as folder:
            job = support.write_job(os.path.join(folder, "job.json"), data={"batch_size": 4}, train={"epochs": 1})
            script = textwrap.dedent(f"""
                import io, sys, weir

                class Terminal(io.StringIO):
                    def isatty(self): return True

                sys.stderr = Terminal()
                with weir.Client({job!r}, {{"w": (3,)}}, 16) as client:
                    assert not client.shows_progress
                    for step in client.steps():
                        step.gradient.flat[:] = 0
                        step.push(loss=0.25)
                assert sys.stderr.getvalue() == "", sys.stderr.getvalue()
            """)
            done = support.run(support.up(job, ["-c", script], "--workers=1"))
            self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
