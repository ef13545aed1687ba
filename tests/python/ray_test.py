#!/usr/bin/python3
"""weir.ray on a cluster of real Ray nodes, each at a loopback address of its own, in namespaces (network, processes) of this test:
results, exceptions, lost tasks and nodes, and what is left when a job is cancelled."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import types
import unittest

import support

support.run_with("WEIR_RAY_PYTHON")
ENTERED = "WEIR_TEST_NAMESPACES"
NAMESPACES = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
if not os.environ.get(ENTERED):
    tried = subprocess.run([*NAMESPACES, "true"], check=False, capture_output=True, text=True)
    if tried.returncode != 0:
        print(f"SKIPPED: no namespaces may be made here: {tried.stderr.strip()}")
        sys.exit(0)
    os.environ[ENTERED] = "1"
    os.execvp(NAMESPACES[0], [*NAMESPACES, sys.executable, "-B", *sys.argv])
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)

# Ray's memory monitor would kill tasks of a machine that others fill. If this user once had a local cluster, a token is in the home
# folder, and `ray start --head` would ask for it, but ray.init() with an address would not send it.
os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0", RAY_memory_monitor_refresh_ms="0", RAY_raylet_start_wait_time_s="120",
                  PYTHONPATH=f"{support.ROOT}/python:{support.ROOT}/tests/python")
import ray  # pylint: disable=wrong-import-position,wrong-import-order
import torch_jobs  # pylint: disable=wrong-import-position
import weir.ray  # pylint: disable=wrong-import-position

sys.path.insert(0, str(support.ROOT / "tests/structure"))
import page_blocks  # pylint: disable=wrong-import-position

HEAD = "127.0.0.2"
# Free in this test's network, and none of those that the system gives to whoever asks for any port, as Ray's other processes do.
PORT = 6379
ADDRESS = f"{HEAD}:{PORT}"
HOLD_AT = 5  # of a worker's batches, at which one worker waits
GONE_SECONDS = 15


def wait_until(condition, what, seconds=support.LIMIT_SECONDS):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.02)
    return found


class Node:
    """A node of the cluster, as `ray start` makes it. Its folder has a short path, since sockets are in it."""

    def __init__(self, folder, address, *flags, environment=None, **resources):
        self.log = pathlib.Path(folder, f"{address}.log")
        flags = [*flags, f"--node-ip-address={address}", f"--num-cpus={resources.pop('cpus')}", f"--temp-dir={folder}", "--block",
                 "--resources=" + str(resources).replace("'", '"'), "--object-store-memory=80000000", "--disable-usage-stats"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen([sys.executable, f"{sys.prefix}/bin/ray", "start", *flags], stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, start_new_session=True, env=environment)
        self.address = address

    def wait(self):
        def is_there():
            if self.process.poll() is not None:
                raise AssertionError(self.log.read_text())
            return any(n["Alive"] and n["NodeManagerAddress"] == self.address for n in ray.nodes())
        wait_until(is_there, f"node {self.address} is there")
        return self

    def lose(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def tasks():
    """The processes of jobs."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            command = (path / "cmdline").read_bytes()  # empty: the process has ended, and nobody has taken note
            if path.name != str(os.getpid()) and any(word in command for word in (b"ps_server", b"WeirTask", b"train.py", b"cnn.py")):
                found.append(command.replace(b"\0", b" ").decode())
    return found


def server(index):
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if f'"task": {{"type": "ps", "index": {index}}}'.encode() in (path / "environ").read_bytes():
                return int(path.name)
    return None


def parent(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def trains(folder, *flags, on=None):
    """A function that trains as train.py does, with the flags, on this node or on all, and returns its node."""
    def program(job):
        import train  # pylint: disable=import-outside-toplevel
        node = ray.util.get_node_ip_address()
        sys.argv = ["train.py", str(folder / "job.json"), str(folder), *(flags if on in (None, node) else ())]
        (folder / f"on-{node}").touch()
        train.main()
        return job["name"], node
    return program


class Ray(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = subprocess.run(["mktemp", "-d", "/tmp/ray-XXXXXX"], capture_output=True, text=True, check=True).stdout.strip()
        cls.folder = folder
        cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        head = Node(folder, HEAD, "--head", f"--port={PORT}", "--include-dashboard=false", cpus=6, slot=1)
        cls.addClassCleanup(head.lose)

        def connects():
            if head.process.poll() is not None:
                raise AssertionError(head.log.read_text())
            with contextlib.suppress(OSError):
                socket.create_connection((HEAD, PORT), 1).close()
                return True
            return False
        wait_until(connects, "Ray's head is there")
        ray.init(address=ADDRESS, _node_ip_address=HEAD)
        cls.addClassCleanup(ray.shutdown)
        cls.second = cls.node("127.0.0.3", cpus=6, stays=2).wait()

    @classmethod
    def node(cls, address, **how):
        node = Node(cls.folder, address, f"--address={ADDRESS}", **how)
        cls.addClassCleanup(lambda: node.process.poll() is None and node.lose())
        return node

    def tearDown(self):
        self.assert_nothing_left()

    def assert_nothing_left(self):
        try:
            wait_until(lambda: not tasks(), "the job's processes have ended", GONE_SECONDS)
        except AssertionError:
            self.fail(f"still there: {tasks()}")

    def once_held(self, folder, action):
        """Does this when a worker waits, and then lets it go. Returns what waits for that."""
        def act():
            wait_until(lambda: (folder / "held").exists(), "a worker waits")
            action()
            (folder / "go").touch()
        thread = threading.Thread(target=act)
        thread.start()
        return thread.join

    def check(self, run, result, models):
        """The bits of a serial loop."""
        run.check(types.SimpleNamespace(returncode=0, stderr=""), models)
        run.check_once()
        self.assertEqual(result.summary["steps"], torch_jobs.STEPS)

    # ---- results

    def test_a_function_trains_what_weir_up_trains(self):
        run = torch_jobs.Run(self, name="digits")
        on_one_host = run.folder / "summary.json"
        done = support.run(run.up("--ps=2", "--workers=2", f"--summary={on_one_host}"))
        self.assertEqual(done.returncode, 0, done.stderr)
        here = torch_jobs.Run(self, name="digits")
        result = weir.ray.run(trains(here.folder), here.job, ps=2, workers=2)
        self.check(here, result, 2)
        self.assertIn(f'"weights_sha256": "{result.summary["weights_sha256"]}"', on_one_host.read_text())
        self.assertEqual([name for name, _ in result.values], ["digits"] * 2)
        self.assertTrue(result.summary["tls"])
        self.assertEqual(result.summary["restarts"], {})

    def test_the_example_has_the_bits_of_one_host(self):
        program, job, hashes = [support.ROOT / "examples/cnn.py", "--most=600"], support.ROOT / "examples/cnn.json", []
        with tempfile.TemporaryDirectory() as folder:
            summary = pathlib.Path(folder, "summary.json")
            done = support.run(support.up(job, program, "--ps=2", "--workers=2", f"--summary={summary}"))
            self.assertEqual(done.returncode, 0, done.stderr)
            hashes.append(json.loads(summary.read_text())["weights_sha256"])
        hashes.append(weir.ray.run(program, job, ps=2, workers=2).summary["weights_sha256"])
        self.assertEqual(*hashes)

    def test_the_program_of_the_page(self):
        """That of docs/ray.md, a driver of its own."""
        program = page_blocks.block_with(support.ROOT, "docs/ray.md", "weir.ray.run(").text
        done = support.run([sys.executable, "-c", program], env=os.environ | {"RAY_ADDRESS": ADDRESS})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"\[\(0, [\d.e-]+\), \(1, [\d.e-]+\)\] [0-9a-f]{64}")

    def test_a_script_that_is_killed_once_in_plain_text(self):
        run = torch_jobs.Run(self)
        result = weir.ray.run([torch_jobs.TRAIN, run.job, run.folder, f"--die_at={HOLD_AT}"], run.job, ps=2, workers=2, tls=False)
        run.check(types.SimpleNamespace(returncode=0, stderr=""), (1, 2))
        self.assertEqual(result.values, [None, None])
        self.assertFalse(result.summary["tls"])
        self.assertEqual(list(result.summary["restarts"].values()), [1])

    def test_the_first_exception_is_raised(self):
        def fails(job):
            raise LookupError("this batch is bad") if '"index": 1}' in os.environ["TF_CONFIG"] else weir.PeerLost("another task is lost")
        with self.assertRaisesRegex(LookupError, "this batch is bad"):
            weir.ray.run(fails, torch_jobs.job(), workers=2, restarts=0)

    def test_a_script_that_fails(self):
        run = torch_jobs.Run(self)
        with self.assertRaisesRegex(weir.Error, r"worker:\d at 127.0.0.\d:\d+ exited with 1; its last lines:\n(.*\n)+ValueError: this batch") as seen:
            weir.ray.run([torch_jobs.TRAIN, run.job, run.folder, "--fail_at=2"], run.job, ps=1, workers=2)
        self.assertEqual(seen.exception.exit_code, 1)

    def test_a_program_that_does_not_train(self):
        with self.assertRaisesRegex(weir.PeerLost, "all workers have ended, but the job is not done"):
            weir.ray.run(lambda job: None, torch_jobs.job(cluster={"lease_seconds": 1}), workers=2)

    # ---- losses

    def test_a_killed_actor_and_killed_servers(self):
        """In turn: a worker's actor, ps:1, ps:0's actor."""
        for task, flags, action in (
                (None, [f"--die_at={HOLD_AT}"], lambda: None),
                ("ps:1", [f"--hold_at={HOLD_AT}"], lambda: os.kill(server(1), signal.SIGKILL)),
                ("ps:0", [f"--hold_at={HOLD_AT}"], lambda: os.kill(parent(server(0)), signal.SIGKILL))):
            with self.subTest(task):
                run = torch_jobs.Run(self)
                join = self.once_held(run.folder, action) if task else lambda: None
                result = weir.ray.run(trains(run.folder, *flags), run.job, ps=2, workers=2, overrides=[
                    f'checkpoint={{"directory": "{run.folder}/saved", "every_steps": 2}}'])
                join()
                run.check(types.SimpleNamespace(returncode=0, stderr=""), (1, 2, 3))
                self.assertIn(task or list(result.summary["restarts"])[0], result.summary["restarts"])
                self.assertEqual(sum(result.summary["restarts"].values()), 1)
                self.assert_nothing_left()

    def test_a_lost_server_without_checkpoints(self):
        run = torch_jobs.Run(self)
        join = self.once_held(run.folder, lambda: os.kill(server(1), signal.SIGKILL))
        with self.assertRaisesRegex(weir.PeerLost, "ps:1 at .* exited with 137"):
            weir.ray.run(trains(run.folder, f"--hold_at={HOLD_AT}"), run.job, ps=2, workers=2)
        join()

    def test_a_lost_node(self):
        """A worker is on each node with a slot. When a node is lost, its worker continues on the next node that has one.
        The servers are on a node that stays: a lost ps:0 would start all workers again."""
        run = torch_jobs.Run(self)
        lost = self.node("127.0.0.4", cpus=2, slot=1).wait()

        def lose():
            lost.lose()
            wait_until(lambda: not any(n["Alive"] and n["NodeManagerAddress"] == lost.address for n in ray.nodes()), "Ray has noticed")
            self.node("127.0.0.5", cpus=2, slot=1)
            wait_until((run.folder / "on-127.0.0.5").exists, "the worker is on the new node")
        join = self.once_held(run.folder, lose)
        result = weir.ray.run(trains(run.folder, f"--hold_at={HOLD_AT}", on=HEAD), run.job, ps=2, workers=2,
                              resources={"CPU": 1, "slot": 1}, ps_resources={"stays": 1},
                              overrides=[f'checkpoint={{"directory": "{run.folder}/saved", "every_steps": 2}}'])
        join()
        run.check(types.SimpleNamespace(returncode=0, stderr=""), (1, 2))
        self.assertLessEqual({"on-127.0.0.2", "on-127.0.0.4", "on-127.0.0.5"}, {path.name for path in run.folder.glob("on-*")})
        self.assertTrue(set(result.summary["restarts"]) & {"worker:0", "worker:1"}, result.summary["restarts"])

    # ---- the end from outside

    def test_ray_cancel(self):
        @ray.remote(num_cpus=0)
        def outer(folder, job):
            return weir.ray.run(trains(folder, f"--hold_at={HOLD_AT}"), job, ps=2, workers=2)
        for force in (False, True):
            with self.subTest(force=force):
                run = torch_jobs.Run(self)
                call = outer.remote(run.folder, run.job)
                wait_until(lambda: (run.folder / "held").exists(), "the job trains")
                ray.cancel(call, force=force)
                with self.assertRaises(ray.exceptions.RayError):
                    ray.get(call, timeout=support.LIMIT_SECONDS)
                self.assert_nothing_left()

    def drive(self, run):
        """A driver of its own, whose job has a worker that waits, and saves nothing by itself."""
        driver = subprocess.Popen([sys.executable, "-c", textwrap.dedent(f"""
            import ray, weir.ray
            ray.init(address={ADDRESS!r}, _node_ip_address={HEAD!r})
            checkpoint = 'checkpoint={{"directory": "{run.folder}/saved", "every_steps": 1000000}}'
            weir.ray.run([{str(torch_jobs.TRAIN)!r}, {run.job!r}, {str(run.folder)!r}, "--hold_at={HOLD_AT}"], {run.job!r}, ps=2, workers=2,
                         overrides=[checkpoint])
        """)], stderr=subprocess.PIPE, text=True)
        self.addCleanup(driver.kill)
        wait_until(lambda: (run.folder / "held").exists() or driver.poll() is not None, "the job trains")
        return driver

    def test_ctrl_c_saves_and_another_run_continues(self):
        run = torch_jobs.Run(self)
        driver = self.drive(run)
        driver.send_signal(signal.SIGINT)
        _, said = driver.communicate(timeout=support.LIMIT_SECONDS)
        self.assertIn("KeyboardInterrupt", said)
        self.assert_nothing_left()
        steps = sorted(int(path.name[5:]) for path in (run.folder / "saved").glob("step-*"))
        self.assertGreater(steps[-1], 0, said)
        result = weir.ray.run(trains(run.folder), run.job, ps=3, workers=1, overrides=[f"checkpoint.directory={run.folder}/saved"])
        run.check(types.SimpleNamespace(returncode=0, stderr=""), 1)
        self.assertEqual(result.summary["recoveries"], 0)

    def test_the_death_of_the_driver(self):
        driver = self.drive(torch_jobs.Run(self))
        self.assertIsNone(driver.poll())
        driver.kill()
        driver.communicate()
        self.assert_nothing_left()

    # ---- bad input

    def test_too_few_resources(self):
        with self.assertRaisesRegex(weir.ConfigError, r"worker:8 did not start within 20 s on the cluster's \d nodes. 2 servers of "
                                                      r"{'CPU': 1} and 9 workers of {'CPU': 2} want CPU 20, of which the cluster has 1\d, \d free"):
            weir.ray.run(trains(pathlib.Path("none")), torch_jobs.job(), ps=2, workers=9, resources={"CPU": 2}, start_seconds=20)
        with self.assertRaisesRegex(weir.ConfigError, "^ps:0.* did not start .*GPU 1, of which the cluster has 0"):
            weir.ray.run(trains(pathlib.Path("none")), torch_jobs.job(), ps_resources={"GPU": 1}, start_seconds=3)

    def test_nodes_with_another_weir_or_none(self):
        temporary = support.folder()
        self.addCleanup(temporary.cleanup)
        shutil.copytree(support.ROOT / "python/weir", f"{temporary.name}/weir")
        with open(f"{temporary.name}/weir/__init__.py", "a", encoding="utf-8") as file:
            file.write('\n__version__ = "0.0.9"\n')
        # One after the other: they choose names in one folder.
        nodes = [self.node("127.0.0.6", cpus=1, old=1, environment={**os.environ, "PYTHONPATH": temporary.name}).wait(),
                 self.node("127.0.0.7", cpus=1, without=1, environment={**os.environ, "PYTHONPATH": ""}).wait()]
        with self.assertRaisesRegex(weir.ConfigError, f"^127.0.0.6, the node of worker:0, has weir 0.0.9, and this process has {weir.__version__}"):
            weir.ray.run(trains(pathlib.Path("none")), torch_jobs.job(), resources={"old": 1}, ps_resources={"slot": 0.1}, start_seconds=100)
        with self.assertRaisesRegex(weir.ConfigError, f"(?s)^worker:0 could not be started; is weir {weir.__version__} installed on every "
                                                      "node.*No module named 'weir'"):
            weir.ray.run(trains(pathlib.Path("none")), torch_jobs.job(), resources={"without": 1}, ps_resources={"slot": 0.1}, start_seconds=100)
        for node in nodes:
            node.lose()

    def test_wrong_counts(self):
        for counts, said in (({"ps": 0}, "ps must be at least 1, got 0"), ({"workers": 0}, "cluster.workers")):
            with self.assertRaisesRegex(weir.ConfigError, said):
                weir.ray.run(trains(pathlib.Path("none")), torch_jobs.job(), **counts)

    def test_only_its_own_import_imports_ray(self):
        done = support.run([sys.executable, "-c", "import sys, weir.torch; sys.exit('ray' in sys.modules)"])
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_script_that_is_not_there(self):
        with self.assertRaisesRegex(weir.ConfigError, "127.0.0.[23] has no .*/none.py: give ray.init"):
            weir.ray.run("none.py", torch_jobs.job())


if __name__ == "__main__":
    unittest.main()
