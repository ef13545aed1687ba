#!/usr/bin/python3
"""SIGTERM ends a Python worker with 143 within three seconds: it hands its work back, and saves a job of its own process."""
import json
import os
import pathlib
import signal
import subprocess
import textwrap
import time
import unittest

import support

# From the signal to the end; the limit of the product, and a machine that is busy.
LIMIT, SLACK = 3, 2

JOB = """
    import os, signal, sys, time
    import numpy as np
    import weir
    job = {"data": {"batch_size": 4}, "train": {"epochs": 1000}, "consistency": {"mode": "sync", "parts": 2}}
    def steps(client):
        for n, step in enumerate(client.steps()):
            step.gradient.flat[:] = 0
            step.push()
            if n == 5: print("trains", flush=True)
            yield n
"""


def script(text):
    return [support.PYTHON, "-c", textwrap.dedent(JOB) + textwrap.dedent(text)]


def task_of(parent, kind, index):
    """The process of a task among the children of `weir up`."""
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if f"\nPPid:\t{parent}\n" in (path / "status").read_text() and \
                    f'"task":{{"type":"{kind}","index":{index}}}' in (path / "environ").read_text():
                return int(path.name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    raise AssertionError(f"{kind}:{index} does not run")


class Alone(unittest.TestCase):
    def terminate(self, text, code=143):
        """Runs the script, and sends SIGTERM when it has printed a line. Returns its output."""
        process = subprocess.Popen(script(text), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "trains\n", "" if process.poll() is None else process.stderr.read())
        begin = time.monotonic()
        process.terminate()
        out, error = process.communicate(timeout=support.LIMIT_SECONDS)
        self.assertLess(time.monotonic() - begin, LIMIT + SLACK, error)
        self.assertEqual(process.returncode, code, error)
        return out + error

    def test_the_job_is_saved_and_continues(self):
        with support.folder() as runs:
            told = self.terminate(f"""
                with weir.Client({{**job, "checkpoint": {{"directory": {runs!r}}}}}, {{"w": (3,)}}, 64) as c:
                    try:
                        for _ in steps(c): time.sleep(0.01)
                    finally:
                        print("tidies up")
            """)
            self.assertIn(f"weir: SIGTERM; started again, the job goes on from {runs}/step-", told)
            self.assertIn("tidies up", told)
            self.assertNotIn("Traceback", told)

    def test_within_a_call_that_takes_longer(self):
        """Python gives the main thread its signal only after the call."""
        self.terminate("""
            import hashlib
            with weir.Client(job, {"w": (3,)}, 64) as c:
                for n in steps(c):
                    if n == 5: hashlib.pbkdf2_hmac("sha256", b"a", b"b", 10**9)
        """)

    def test_a_handler_of_the_programs_own_counts(self):
        for when in ("before", "after"):
            with self.subTest(when=when):
                handler = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))"
                self.terminate(f"""
                    {handler if when == "before" else ""}
                    with weir.Client(job, {{"w": (3,)}}, 64) as c:
                        for n in steps(c):
                            if n == 0: {handler if when == "after" else "pass"}
                """, code=7)

    def test_a_childs_signal_is_not_the_parents(self):
        told = self.terminate("""
            import multiprocessing
            with weir.Client(job, {"w": (3,)}, 64) as c:
                for n in steps(c):
                    if n == 3:
                        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(100,))
                        child.start()
                        child.terminate()
                        child.join()
                        print(child.exitcode, file=sys.stderr)
        """)
        self.assertIn("-15", told)


class InACluster(unittest.TestCase):
    def setUp(self):
        temporary = support.folder()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def start(self, text, **fields):
        job = support.write_job(self.folder / "job.json", data={"batch_size": 4}, **fields)
        program = self.folder / "program.py"
        program.write_text(textwrap.dedent(JOB) + f"job = {job!r}\n" + textwrap.dedent(text))
        process = subprocess.Popen([str(support.ROOT / "cli/weir"), "up", "--workers=2", "--ps=1", job, "--", support.PYTHON, str(program)],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.kill)
        return process

    def test_the_others_do_its_work_at_once(self):
        """The worker that stays would wait for cluster.grace_seconds otherwise, which are more than the test has."""
        process = self.start("""
            import pathlib
            folder = pathlib.Path(job).parent
            with weir.Client(job, {"w": (3,)}, 64) as c:
                for n in steps(c):
                    time.sleep(0.005)
                    (folder / f"at-{c.worker}").write_text(str(n))
        """, train={"epochs": 60}, consistency={"mode": "sync", "parts": 2}, cluster={"grace_seconds": 600, "lease_seconds": 601})
        deadline = time.monotonic() + support.LIMIT_SECONDS
        while not all((self.folder / f"at-{rank}").exists() for rank in (0, 1)):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        victim = task_of(process.pid, "worker", 1)
        begin = time.monotonic()
        os.kill(victim, signal.SIGTERM)
        while pathlib.Path(f"/proc/{victim}").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        self.assertLess(time.monotonic() - begin, LIMIT + SLACK)
        out, _ = process.communicate(timeout=support.LIMIT_SECONDS)
        self.assertEqual(process.returncode, 0, out)
        self.assertIn("143", out)


class DrainedServers(unittest.TestCase):
    def test_a_worker_that_hears_it_late_says_so(self):
        """ps:0 is gone when the worker, which computes, hears of it."""
        with support.folder() as folder:
            job = support.write_job(pathlib.Path(folder) / "job.json", data={"batch_size": 4}, train={"epochs": 1000},
                                    checkpoint={"directory": folder + "/runs"}, cluster={"server_wait_seconds": 1})
            port = support.run([support.PYTHON, "-c", "import socket; s = socket.create_server(('127.0.0.1', 0)); "
                                                      "print(s.getsockname()[1])"]).stdout.strip()
            cluster = {"ps": [f"127.0.0.1:{port}"], "worker": ["127.0.0.1:1"]}

            def start(task, command):
                spec = json.dumps({"cluster": cluster, "task": {"type": task, "index": 0}})
                process = subprocess.Popen(command, env={**os.environ, "TF_CONFIG": spec}, stdin=subprocess.PIPE,
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                self.addCleanup(process.kill)
                return process

            server = start("ps", [str(support.ROOT / "ps_server/ps_server"), f"--config={job}"])
            worker = start("worker", script(f"""
                with weir.Client({job!r}, {{"w": (3,)}}, 64) as c:
                    for n in steps(c):
                        if n == 5: sys.stdin.readline()
            """))
            self.assertEqual(worker.stdout.readline(), "trains\n")
            server.terminate()
            server.communicate(timeout=support.LIMIT_SECONDS)
            self.assertEqual(server.returncode, 143)
            _, error = worker.communicate("go on\n", timeout=support.LIMIT_SECONDS)
            self.assertEqual(worker.returncode, 138, error)
            self.assertIn("weir.errors.Drained", error)
            self.assertIn("the job is being saved and ends, since ps:0 got signal 15", error)


if __name__ == "__main__":
    unittest.main()
