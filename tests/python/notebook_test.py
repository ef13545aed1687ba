#!/usr/bin/python3
"""Training in a notebook's kernel: an exception and an interrupt end a job and not the kernel, and the line of progress is drawn
anew."""
import queue
import time
import unittest

import support

support.run_with("WEIR_NOTEBOOK_PYTHON")

from jupyter_client.manager import start_new_kernel  # pylint: disable=wrong-import-position,wrong-import-order

SET_UP = """
import weir

def train(epochs, stop=-1):
    job = {"data": {"batch_size": 4}, "train": {"epochs": epochs}, "consistency": {"mode": "sync", "parts": 2}}
    with weir.Client(job, {"w": (3,)}, 16) as client:
        for n, step in enumerate(client.steps()):
            if n == stop: raise ValueError("stopped")
            step.gradient.flat[:] = 0
            step.push(loss=0.25)
"""


class Notebook(unittest.TestCase):
    def setUp(self):
        self.folder = support.folder()
        self.addCleanup(self.folder.cleanup)
        self.manager, self.client = start_new_kernel(startup_timeout=support.LIMIT_SECONDS, cwd=self.folder.name)
        self.addCleanup(self.manager.shutdown_kernel, now=True)
        self.addCleanup(self.client.stop_channels)
        self.assertEqual(self.run_cell(SET_UP), ("", None))

    def run_cell(self, code, interrupt=False):
        """What the cell writes to stderr, and the name of the exception that ends it. interrupt: as the button does it, once the cell
        has written something."""
        cell = self.client.execute(code)
        seen, error, deadline = "", None, time.monotonic() + support.LIMIT_SECONDS
        while time.monotonic() < deadline:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                self.assertTrue(self.manager.is_alive(), "the kernel is gone")
                continue
            if message["parent_header"].get("msg_id") != cell:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream" and content["name"] == "stderr":
                seen += content["text"]
                if interrupt:
                    self.manager.interrupt_kernel()
                    interrupt = False
            elif kind == "error":
                error = content["ename"]
            elif kind == "status" and content["execution_state"] == "idle":
                return seen, error
        raise AssertionError(f"the cell does not end; it has written: {seen}")

    def check_trains(self):
        seen, error = self.run_cell("train(epochs=3)")
        self.assertIsNone(error)
        self.assertTrue(seen.startswith("\r"), seen)
        self.assertRegex(seen.rsplit("\r", 1)[-1], r"^epoch 3/3  100 %  loss 0\.25  [\d,]+ examples/s  0:\d\d *\n$")

    def test_a_cell_that_trains(self):
        self.check_trains()

    def test_an_exception(self):
        seen, error = self.run_cell("train(epochs=3, stop=5)")
        self.assertEqual(error, "ValueError")
        self.assertRegex(seen, r"% .* left *\n")
        self.check_trains()

    def test_an_interrupt(self):
        seen, error = self.run_cell("train(epochs=1_000_000_000)", interrupt=True)
        self.assertEqual(error, "KeyboardInterrupt")
        self.assertGreater(len(seen.split("\r")), 2, "the line was not drawn anew")
        self.assertTrue(seen.endswith("\n"))
        self.check_trains()


if __name__ == "__main__":
    unittest.main()
