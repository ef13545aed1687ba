#!/usr/bin/python3
"""Weir in a Python process that is interrupted, forked, or ends in the middle of things; and beside other packages."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import textwrap
import time
import unittest

import support
import torch

# How soon a process has ended after Ctrl-C: 0.3 s where nothing else runs; far below every wait of a job.
SOON_SECONDS = 5

JOB = """
    import os, sys, threading, time
    import numpy as np
    import weir
    job = {"data": {"batch_size": 4}, "train": {"epochs": 1000}, "consistency": {"mode": "sync", "parts": 2}}
    def client(**more):
        return weir.Client({**job, **more}, {"w": (3,)}, 64)
"""

# train() yields after each of its steps.
TORCH = """
    import torch, weir.torch
    def train(epochs, **loader):
        model = torch.nn.Linear(4, 1)
        data = torch.utils.data.TensorDataset(torch.ones(64, 4), torch.ones(64, 1))
        opt = weir.torch.Optimizer(model, {**job, "train": {"epochs": epochs}}, data)
        for n, (x, y) in enumerate(opt.loader(**loader)):
            opt.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            opt.step()
            yield n
"""


def with_torch(text):
    return textwrap.dedent(TORCH) + textwrap.dedent(text)


def script(text):
    return [support.PYTHON, "-c", textwrap.dedent(JOB) + textwrap.dedent(text)]


class NoThreads(unittest.TestCase):
    def test_an_exception_and_the_program_goes_on(self):
        """Each new thread wants a stack that is larger than the address space, so that the system refuses it."""
        done = support.run(script("""
            import ctypes
            libc = ctypes.CDLL(None)
            def stacks_of(size):
                attributes = ctypes.create_string_buffer(256)
                libc.pthread_attr_init(attributes)
                libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(size))
                assert libc.pthread_setattr_default_np(attributes) == 0
            stacks_of(1 << 48)
            for _ in range(2):
                try:
                    client()
                except weir.Error as error:
                    print(error.exit_code, "the system gives no thread to " in str(error))
            stacks_of(8 << 20)
            with client() as c:
                print(c.next_work() is not None)
        """))
        self.assertEqual((done.returncode, done.stdout), (0, "70 True\n70 True\nTrue\n"), done.stderr)


class Interrupt(unittest.TestCase):
    def interrupt(self, text, environment=None, soon=SOON_SECONDS):
        """Runs the script, and presses Ctrl-C when it has printed a line: a terminal tells its child processes, too."""
        process = subprocess.Popen(script(text), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
                                   start_new_session=True)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "waits\n", "" if process.poll() is None else process.stderr.read())
        begin = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        out, error = process.communicate(timeout=support.LIMIT_SECONDS)
        print(f"{self.id()}: ended {time.monotonic() - begin:.2f} s after Ctrl-C", file=sys.stderr)
        self.assertLess(time.monotonic() - begin, soon, error)
        self.assertIn("KeyboardInterrupt", error)
        self.assertEqual(process.returncode, -signal.SIGINT, error)

    def test_waiting_for_work(self):
        # The second part's work waits for the push of the first, which never comes.
        self.interrupt("""
            with client() as c:
                c.next_work()
                print("waits", flush=True)
                while c.next_work(): pass
        """)

    def test_waiting_for_servers(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # nobody listens
            port = taken.getsockname()[1]
            cluster = '{"cluster": {"ps": ["127.0.0.1:%d"], "worker": ["127.0.0.1:1"]}, "task": {"type": "worker", ' \
                      '"index": 0}}' % port
            self.interrupt("""
                c = client()
                print("waits", flush=True)
                c.join()
            """, {**os.environ, "TF_CONFIG": cluster})

    def test_waiting_for_storage(self):
        """Nothing answers there; the servers of this process look for checkpoints in vain."""
        self.interrupt("""
            import socket
            silent = socket.create_server(("127.0.0.1", 0))
            os.environ.update(AWS_ENDPOINT_URL="http://127.0.0.1:%d" % silent.getsockname()[1], AWS_REGION="here",
                              AWS_ACCESS_KEY_ID="id", AWS_SECRET_ACCESS_KEY="secret")
            def accept():
                global taken
                taken = silent.accept()
                print("waits", flush=True)
            threading.Thread(target=accept, daemon=True).start()
            client(checkpoint={"directory": "s3://bucket/job"})
        """)

    def test_training(self):
        self.interrupt("""
            with client() as c:
                for step in c.steps():
                    step.gradient.flat[:] = 0
                    step.push()
                    if step.work.clock == 3 and step.work.part == 0: print("waits", flush=True)
        """)

    def test_ignored(self):
        """Ctrl-C has no effect on a program that was started with it ignored, as a shell starts what runs in the background."""
        done = support.run(["sh", "-c", "trap '' INT; exec \"$0\" \"$@\"", *script("""
            import signal
            with client() as c:
                for step in c.steps():
                    step.gradient.flat[:] = 0
                    step.push()
                    if step.work.clock == 3: break
                    os.kill(os.getpid(), signal.SIGINT)
            print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)
        """)])
        self.assertEqual((done.returncode, done.stdout), (0, "True\n"), done.stderr)

    def test_training_with_processes_that_load_data(self):
        self.interrupt(with_torch("""
            for n in train(epochs=1000, num_workers=2):
                if n == 20: print("waits", flush=True)
        """), soon=60)  # PyTorch waits for each of its processes, 5 s at most

    def test_a_notebook_goes_on(self):
        """The cell's loop ends at once. Its error keeps it, as sys.last_value does; meanwhile the next cell trains, and
        nothing holds the process up at its end."""
        done = support.run(script(with_torch(f"""
            import signal
            kept, pressed = [], 0
            def press():
                global pressed
                pressed = time.monotonic()
                os.kill(os.getpid(), signal.SIGINT)
            for place in ("in the loop", "in a wait of the library"):
                try:
                    if place == "in the loop":
                        for n in train(epochs=1000, num_workers=2):
                            if n == 20: press()
                    else:
                        with client() as c:
                            c.next_work()
                            threading.Timer(0.05, press).start()
                            while c.next_work(): pass
                    raise AssertionError("the loop ended")
                except KeyboardInterrupt as error:
                    kept.append(error)
                seconds = time.monotonic() - pressed
                print(f"{{place}}: ended {{seconds:.2f}} s after Ctrl-C", file=sys.stderr)
                assert seconds < {SOON_SECONDS}, seconds
                for _ in train(epochs=1): pass
            print("trained")
        """)))
        print(f"{self.id()}: {done.stderr}", file=sys.stderr)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, "trained\n")


class Tls(unittest.TestCase):
    def test_worker_of_a_cluster_with_tls(self):
        with support.folder() as folder, socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", 0))  # nobody listens here before the server
            cluster = {"ps": ["127.0.0.1:%d" % taken.getsockname()[1]], "worker": ["127.0.0.1:1"]}
            spec = os.path.join(folder, "cluster.json")
            with open(spec, "w", encoding="utf-8") as file:
                json.dump({"cluster": cluster}, file)
            certs = os.path.join(folder, "certs")
            weir = [str(support.ROOT / "cli/weir"), "certs", "init", certs, "--spec=" + spec]
            self.assertEqual(support.run(weir).returncode, 0)
            job = support.write_job(os.path.join(folder, "job.json"), data={"batch_size": 4}, train={"epochs": 2},
                                    wire={"transport": "tcp"}, consistency={"mode": "sync", "parts": 2})

            def environment(task, kind, index):
                return {**os.environ, "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}}),
                        "WEIR_TLS_CA": certs + "/ca.pem", "WEIR_TLS_CERTIFICATE": f"{certs}/{task}.pem",
                        "WEIR_TLS_KEY": f"{certs}/{task}.key", "JOB": job}

            server = subprocess.Popen([str(support.ROOT / "ps_server/ps_server"), "--config=" + job],
                                      env=environment("ps-0", "ps", 0))
            self.addCleanup(server.kill)
            train = script("""
                with weir.Client(os.environ["JOB"], {"w": (3,)}, 64) as c:
                    for step in c.steps():
                        step.gradient.flat[:] = 0
                        step.push()
            """)
            wrong = support.run(train, env=environment("ps-0", "worker", 0))
            self.assertIn("this process needs that of spiffe://weir/worker/0", wrong.stderr)
            done = support.run(train, env=environment("worker-0", "worker", 0))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(server.wait(support.LIMIT_SECONDS), 0)


class Summary(unittest.TestCase):
    def test_hash_of_the_final_weights(self):
        """Nobody evaluates them, and each worker has them in the end."""
        with support.folder() as folder:
            job = support.write_job(os.path.join(folder, "job.json"), data={"batch_size": 4}, train={"epochs": 3},
                                    consistency={"mode": "sync"}, server={"min_shard_kib": 0})
            program = """
                import hashlib, sys
                import numpy as np
                import weir
                result = {"w": np.empty((7, 3), np.float32), "b": np.empty(5, np.float32)}
                with weir.Client(sys.argv[1], {"w": (7, 3), "b": (5,)}, 64) as c:
                    for step in c.steps(result):
                        step.gradient.flat[:] = step.work.batch
                        step.push()
                print("hash", hashlib.sha256(result["w"].tobytes() + result["b"].tobytes()).hexdigest(), flush=True)
            """
            path = os.path.join(folder, "summary.json")
            done = support.run(support.up(job, ["-c", textwrap.dedent(program), job], "--workers=2", "--ps=2", "--summary=" + path))
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(path, encoding="utf-8") as file:
                summary = json.load(file)
            self.assertRegex(summary["weights_sha256"], "^[0-9a-f]{64}$")
            self.assertIn("hash " + summary["weights_sha256"], done.stdout + done.stderr)
            self.assertIn("sha256 " + summary["weights_sha256"], done.stdout)
            self.assertIsNone(summary["test_loss"])


class Ending(unittest.TestCase):
    def ends(self, text, code=0):
        done = support.run(script(text))
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def test_without_leaving(self):
        done = self.ends("c = client(); c.join(); c.next_work()")
        self.assertIn("the program ended before the job was done", done.stderr)

    def test_with_calls_in_flight(self):
        self.ends("""
            c = client()
            c.join()
            futures = [c.pull(0, {"w": np.zeros(3, np.float32)}) for _ in range(20)]
            c.begin_next_work(); c.begin_next_work(); c.begin_next_work()
        """)

    def test_calls_that_nobody_waits_for_keep_their_memory(self):
        self.ends("""
            c = client()
            c.join()
            for _ in range(200): c.pull(0, {"w": np.zeros(3, np.float32)})
            c.give_up("that was all")
        """)

    def test_an_error_decides_the_exit_code(self):
        self.ends("""
            with client(train={"examples": 4}) as c:
                for step in c.steps():
                    step.gradient.flat[:] = np.inf
                    step.push()
        """, code=70)
        self.ends('weir.Job("no-such.json")', code=78)
        self.ends("raise ValueError(1)", code=1)

    def test_an_error_ends_the_program_as_any_other_does(self):
        """Files get what was written to them, and handlers run: those that were registered before Weir's, too."""
        with support.folder() as folder:
            done = support.run([support.PYTHON, "-c", textwrap.dedent(f"""
                import atexit
                atexit.register(print, "handled")
                import weir
                file = open({folder!r} + "/text", "w")
                file.write("written")
                weir.Job("no-such.json")
            """)])
            self.assertEqual(done.returncode, 78, done.stderr)
            self.assertRegex(done.stderr, r"^Traceback (.|\n)*\nweir.errors.ConfigError: .*no-such.json.*\n$")
            self.assertNotIn("SystemExit", done.stderr)
            self.assertEqual(done.stdout, "handled\n")
            self.assertEqual((pathlib.Path(folder) / "text").read_text(), "written")

    def test_an_error_does_not_end_an_interactive_interpreter(self):
        done = support.run([support.PYTHON, "-i", "-c", 'import weir; weir.Job("no-such.json")'], input="print(6 * 7)\n")
        self.assertEqual((done.returncode, done.stdout), (0, "42\n"), done.stderr)
        self.assertNotIn("SystemExit", done.stderr)


class Fork(unittest.TestCase):
    def test_a_child_leaves_the_connections_alone(self):
        done = support.run(script("""
            with client(train={"epochs": 3}) as c:
                for n, step in enumerate(c.steps()):
                    if n % 4 == 0:
                        child = os.fork()
                        if child == 0:
                            weir.Job(job), weir.ExampleOrder(64, 0)(0, 64)  # without connections
                            for call in (c.next_work, c.new_gradient, c.leave, lambda: c.worker, step.push, client,
                                         lambda: c.pull(0, {"w": np.zeros(3, np.float32)}).result()):
                                try:
                                    call()
                                except weir.ConfigError as error:
                                    assert "forked" in str(error), error
                                else:
                                    os._exit(3)
                            del step, c
                            sys.exit(7)
                        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
                    step.gradient.flat[:] = 0
                    step.push()
            print("trained")
        """))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("trained", done.stdout)

    def test_a_forked_child_says_nothing_of_the_job(self):
        done = support.run(script("""
            with client(train={"epochs": 1}) as c:
                for n, step in enumerate(c.steps()):
                    if n == 1:
                        child = os.fork()
                        if child == 0:
                            sys.exit(7)
                        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
                    step.gradient.flat[:] = 0
                    step.push()
        """))
        self.assertEqual((done.returncode, done.stderr), (0, ""))


    def test_processes_that_load_data_beside_a_client(self):
        """A program's own DataLoader, within the loop: its processes come when there are connections."""
        done = support.run(script("""
            import torch
            data = torch.utils.data.TensorDataset(torch.arange(64.))
            with client(train={"epochs": 3}) as c:
                for n, step in enumerate(c.steps()):
                    if n % 16 == 0:
                        start = ("fork", "forkserver", "spawn")[n // 16]
                        loader = torch.utils.data.DataLoader(data, 8, num_workers=2, multiprocessing_context=start)
                        assert sum(float(x.sum()) for x, in loader) == 63 * 32
                        print(start)
                    step.gradient.flat[:] = 0
                    step.push()
        """))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.split(), ["fork", "forkserver", "spawn"])

    def test_processes_of_the_loader(self):
        """However they start, the same batches come, and the same weights."""
        program, models = support.ROOT / "tests/python/train.py", []
        for flags in ([], ["--start=fork"], ["--start=forkserver"], ["--start=spawn"]):
            with self.subTest(flags=flags), support.folder() as folder:
                job = support.write_job(os.path.join(folder, "job.json"), data={"batch_size": 8}, train={"epochs": 2},
                                        consistency={"mode": "sync", "parts": 2})
                flags = flags and ["--num_workers=2", *flags]
                done = support.run([support.PYTHON, str(program), job, folder, *flags])
                self.assertEqual(done.returncode, 0, done.stderr)
                (model,) = pathlib.Path(folder).glob("model-*.pt")
                models.append(torch.load(model))
        for model in models:
            for name, value in models[0].items():
                self.assertTrue(torch.equal(model[name], value), name)


class OtherPackages(unittest.TestCase):
    def test_any_order_of_imports(self):
        """gRPC's and protobuf's own packages have their libraries in the same process."""
        use = """
            import grpc, google.protobuf.empty_pb2
            from concurrent import futures
            grpc.server(futures.ThreadPoolExecutor(1)).start()
            google.protobuf.empty_pb2.Empty().SerializeToString()
        """
        train = """
            with client(train={"epochs": 1}) as c:
                for step in c.steps():
                    step.gradient.flat[:] = 0
                    step.push()
        """
        for first, second in ((use, train), (train, use)):
            done = support.run(script(textwrap.dedent(first) + textwrap.dedent(second)))
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_another_protobuf_for_all(self):
        """TensorFlow has its own protobuf serve the whole process. Ours must not take it, as it is of another version."""
        found = "_ZNK6google8protobuf14DescriptorPool14FindFileByNameERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
        with support.folder() as folder:
            library = os.path.join(folder, "other.so")
            source = "void abort(void); void %s(void) { abort(); } void grpc_init(void) { abort(); }" % found
            done = support.run(["gcc", "-shared", "-fPIC", "-x", "c", "-o", library, "-"], input=source)
            self.assertEqual(done.returncode, 0, done.stderr)
            done = support.run([support.PYTHON, "-c", textwrap.dedent(f"""
                import ctypes
                ctypes.CDLL({library!r}, mode=ctypes.RTLD_GLOBAL)
                import weir
                with weir.Client({{"data": {{"batch_size": 4}}}}, {{"w": (3,)}}, 16) as c:
                    for step in c.steps():
                        step.gradient.flat[:] = 0
                        step.push()
            """)])
            self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
