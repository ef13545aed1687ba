#!/usr/bin/python3
"""Weir in a Python process whose checkpoints are in object storage."""
import os
import pathlib
import sys
import textwrap
import unittest

import support

sys.path.insert(0, str(support.ROOT / "tests/common/object_store"))
import s3  # pylint: disable=wrong-import-position


class Storage(unittest.TestCase):
    def setUp(self):
        folder = support.folder()
        self.addCleanup(folder.cleanup)
        self.server = s3.Server(pathlib.Path(folder.name))
        self.addCleanup(self.server.close)

    def test_an_opening_after_one_that_still_waits(self):
        """Ctrl-C ends the first call, which goes on without a caller when storage answers. The second one waits for that: the
        first would take the folder from its job."""
        done = support.run([support.PYTHON, "-c", textwrap.dedent(f"""
            import json, os, signal, threading, urllib.request
            import weir
            job = {{"data": {{"batch_size": 4}}, "train": {{"epochs": 1}}, "checkpoint": {{"directory": "s3://{s3.BUCKET}/job"}}}}
            def tell(path, data=None):
                return json.load(urllib.request.urlopen(os.environ["AWS_ENDPOINT_URL_S3"] + "/-/" + path, data))
            def press():
                while not tell("counts"): pass
                os.kill(os.getpid(), signal.SIGINT)
            tell("faults?next=*:paused", b"")
            threading.Thread(target=press).start()
            try:
                weir.Client(job, {{"w": (3,)}}, 64)
            except KeyboardInterrupt:
                print("interrupted")
            with weir.Client(job, {{"w": (3,)}}, 64) as client:
                for step in client.steps():
                    step.gradient.flat[:] = 0
                    step.push()
            print("trained")
        """)], env={**os.environ, **self.server.variables})
        self.assertEqual((done.returncode, done.stdout), (0, "interrupted\ntrained\n"), done.stderr)
        self.assertIn(f"still opens s3://{s3.BUCKET}/job", done.stderr)


if __name__ == "__main__":
    unittest.main()
