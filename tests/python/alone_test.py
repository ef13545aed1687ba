#!/usr/bin/python3
"""A job in one process: how it begins and ends, what it then says on stderr, and what it saves."""
import pathlib
import re
import textwrap
import unittest

import support

# The batches that a run was given are what it prints; `at` calls do() in the batch of that number.
PROGRAM = """
    import os, signal, sys, threading, time
    import numpy as np
    import weir

    job = {"data": {"batch_size": 4}, "train": {"epochs": 2}, "consistency": {"mode": MODE, **({"parts": 2} if MODE == "sync" else {})},
           "checkpoint": {"directory": FOLDER, "every_seconds": 1000} if FOLDER else {}}

    def press():
        os.kill(os.getpid(), signal.SIGINT)

    def fail():
        raise ValueError("mine")

    def hang(client):
        # In the place of a call to the library: takes a minute, and Ctrl-C comes meanwhile.
        from weir._library import library
        threading.Timer(0.3, press).start()
        return library.wait_draining(client, 60)

    def numpy_run(at=-1, do=None, **options):
        trained = {"w": np.zeros(3, np.float32)}
        with weir.Client(job, {"w": np.full(3, 7, np.float32)}, 16, **options) as client:
            for step in client.steps(trained):
                print(step.work.batch, flush=True)
                if step.work.batch == at: do()
                step.gradient.flat[:] = 1
                step.push()
        return trained["w"]

    def torch_run(at=-1, do=None, leave=False, **options):
        import torch, weir.torch
        model = torch.nn.Linear(3, 1, bias=False)
        torch.nn.init.constant_(model.weight, 7)
        data = torch.utils.data.TensorDataset(torch.ones(16, 3))
        opt = weir.torch.Optimizer(model, job, data, **options)
        for n, (x,) in enumerate(opt.loader()):
            batch = opt._step.work.batch
            print(batch, flush=True)
            if batch == at:
                if leave: break
                do()
            opt.zero_grad()
            model(x).sum().backward()
            opt.step()
        return model.weight.detach().numpy()[0]
"""
BATCHES = 8


class Alone(unittest.TestCase):
    def setUp(self):
        folder = support.folder()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name) / "saved"

    def run_program(self, text, mode="sync", saved=True, code=0):
        """The batches that it was given, and what it says on stderr."""
        program = f"MODE, FOLDER = {mode!r}, {str(self.folder) if saved else ''!r}\n" + textwrap.dedent(PROGRAM) + textwrap.dedent(text)
        done = support.run([support.PYTHON, "-c", program])
        self.assertEqual(done.returncode, code, done.stderr)
        self.out = done.stdout
        return [int(n) for n in re.findall(r"^\d+$", done.stdout, re.M)], done.stderr

    def line(self, said):
        """The only line that is Weir's."""
        (line,) = [line for line in said.splitlines() if line.startswith("weir: ")]
        return line

    def test_ctrl_c_saves_the_job_and_it_goes_on(self):
        runs = {"numpy": "numpy_run(at=5, do=press)", "torch": "torch_run(at=5, do=press)", "two servers": "torch_run(at=5, do=press, servers=2)",
                "a wait of the library": """
                    with weir.Client(job, {"w": np.full(3, 7, np.float32)}, 16) as client:
                        for n, step in enumerate(client.steps()):
                            print(step.work.batch, flush=True)
                            if n == 5:
                                threading.Timer(0.05, press).start()
                                while True: client.next_work()
                            step.gradient.flat[:] = 1
                            step.push()
                """, "without with": """
                    client = weir.Client(job, {"w": np.full(3, 7, np.float32)}, 16)
                    for step in client.steps():
                        print(step.work.batch, flush=True)
                        if step.work.batch == 5: press()
                        step.gradient.flat[:] = 1
                        step.push()
                """}
        for name, run in runs.items():
            for mode in ("sync", "async") if name in ("numpy", "torch") else ("sync",):
                with self.subTest(name, mode=mode):
                    self.folder = self.folder.with_name(f"saved-{name}-{mode}".replace(" ", "-"))
                    given, said = self.run_program(run, mode, code=-2)
                    self.assertIn("KeyboardInterrupt", said)
                    match = re.fullmatch(r"weir: Ctrl-C; started again, the job goes on from (\S+)", self.line(said))
                    self.assertTrue(match, said)
                    self.assertEqual(given, list(range(6)))
                    # In sync the step of batches 4 and 5 is done again.
                    rest, said = self.run_program("torch_run()" if "torch" in run else "numpy_run()", mode)
                    self.assertEqual(self.line(said), f"weir: going on from {match[1]}")
                    self.assertEqual(rest, list(range(4 if mode == "sync" else 5, BATCHES)))

    def test_ctrl_c_while_another_loop_is_kept(self):
        """As in a notebook, where a variable keeps the loader of an earlier cell."""
        _, said = self.run_program("""
            import torch, weir.torch
            def loader():
                data = torch.utils.data.TensorDataset(torch.ones(16, 3))
                return weir.torch.Optimizer(torch.nn.Linear(3, 1), {**job, "checkpoint": {}}, data).loader()
            ended, kept = loader(), loader()
            next(ended), next(kept)
            ended.close()
            torch_run(at=5, do=press)
        """, code=-2)
        self.assertRegex(self.line(said), "^weir: Ctrl-C; started again, the job goes on from ")

    def test_a_second_ctrl_c_waits_for_nothing(self):
        """It ends the wait for the servers that save, here for a call that takes a minute in their place."""
        _, said = self.run_program("""
            from weir._library import library
            job["cluster"] = {"server_wait_seconds": 60}
            def leave(client, kind, reason):
                assert kind == 2, kind
                return hang(client)
            library.leave = leave
            begin = time.monotonic()
            try:
                numpy_run(at=5, do=press)
            except KeyboardInterrupt:
                assert time.monotonic() - begin < 30
        """)
        self.assertNotIn("weir: ", said)

    def test_a_save_that_takes_too_long(self):
        """Servers may take longer than they should to give up, here by a call in their place."""
        _, said = self.run_program("""
            import weir.client
            from weir._library import library
            weir.client.LAST_CALL = 0.2
            job["cluster"] = {"server_wait_seconds": 0.5}
            library.leave = lambda client, kind, reason: library.wait_draining(client, 60)
            numpy_run(at=5, do=press)
        """, code=-2)
        self.assertEqual(self.line(said), "weir: the job was not saved within cluster.server_wait_seconds (0.5 s)")

    def test_ctrl_c_while_a_client_is_closed(self):
        """Its servers may wait for storage, here a call in their place."""
        self.run_program("""
            from weir._library import library
            client = weir.Client(job, {"w": (3,)}, 16)
            client.join()
            close = library.close_client
            library.close_client = hang
            begin = time.monotonic()
            try:
                client.close()
            except KeyboardInterrupt:
                assert time.monotonic() - begin < 30
            else:
                sys.exit("close() has waited")
            assert library.wait(close(client._handle), 60)
        """)

    def test_ctrl_c_in_a_program_that_has_its_own_handler(self):
        """It saves the job where the handler raises KeyboardInterrupt, and the handler is there again afterwards."""
        for raises in (True, False):
            with self.subTest(raises=raises):
                self.folder = self.folder.with_name(f"saved-{raises}")
                given, said = self.run_program(f"""
                    pressed = []
                    def handle(number, frame):
                        pressed.append(number)
                        if {raises}: raise KeyboardInterrupt
                    signal.signal(signal.SIGINT, handle)
                    try:
                        torch_run(at=5, do=press)
                    except KeyboardInterrupt:
                        assert {raises}
                    assert pressed == [signal.SIGINT], pressed
                    assert signal.getsignal(signal.SIGINT) is handle
                """)
                self.assertEqual(given, list(range(6 if raises else BATCHES)))
                if raises:
                    self.assertRegex(self.line(said), "^weir: Ctrl-C; started again, the job goes on from ")

    def test_ctrl_c_when_the_job_cannot_be_saved(self):
        """It ends anyway, and says why."""
        _, said = self.run_program("""
            def spoil():
                os.rename(FOLDER, FOLDER + "-away")
                open(FOLDER, "w").close()
                press()
            numpy_run(at=5, do=spoil)
        """, code=-2)
        self.assertRegex(self.line(said), "^weir: the job was not saved: .*Not a directory; the last one is 0$")

    def test_a_job_that_was_done(self):
        """Its loop is empty, and the result is there."""
        for run in ("numpy_run()", "torch_run()"):
            with self.subTest(run):
                self.folder = self.folder.with_name(run[:5])
                results = []
                for expected in (list(range(BATCHES)), []):
                    given, said = self.run_program(f"print('weights', *{run})")
                    self.assertEqual(given, expected)
                    results.append(self.out.splitlines()[-1])
                self.assertRegex(self.line(said), rf"^weir: the job was done before: {self.folder}/step-\d+$")
                self.assertRegex(results[0], r"^weights 6\.\d+ ")
                self.assertEqual(results[0], results[1])

    def test_the_parts_of_the_loop_of_a_job_that_was_done(self):
        self.run_program("numpy_run()")
        self.run_program("""
            with weir.Client(job, {"w": (3,)}, 16) as client:
                try:
                    client.next_work()
                except weir.JobDone as done:
                    assert "examples are done" in str(done), done
                else:
                    sys.exit("there is work")
                weights = {"w": np.zeros(3, np.float32)}
                client.load_resumed(weights).result()
                assert (weights["w"] < 7).all() and (weights["w"] > 6).all(), weights
        """)
        self.run_program("""
            client = weir.Client(job, {"w": (4,)}, 16)
            try:
                for step in client.steps({"w": np.zeros(4, np.float32)}): pass
            except weir.ConfigError as error:
                assert "(3" in str(error) or "[3" in str(error), error
            else:
                sys.exit("another model has the weights")
        """)

    def test_the_rows_of_a_job_that_was_done(self):
        """They are those of its end; a key that has none has its initial values."""
        self.run_program("""
            job["tables"] = [{"name": "other", "dim": 1}, {"name": "rows", "dim": 2, "init": {"type": "uniform", "value": 0.5}}]
            keys = np.array([7, 1, 7, -5, 3], np.int64)
            def train():
                trained, rows = {"w": np.zeros(3, np.float32)}, np.zeros((5, 2), np.float32)
                with weir.Client(job, {"w": np.full(3, 7, np.float32)}, 16, servers=2) as client:
                    for step in client.steps(trained, {"rows": (keys, rows)}):
                        step.gradient.flat[:] = 1
                        step.push(rows={"rows": (np.array([7, -5], np.int64), np.ones((2, 2), np.float32))})
                return rows
            def read():
                with weir.Client({**job, "checkpoint": {}}, {"w": np.full(3, 7, np.float32)}, 16) as client:
                    rows = np.zeros((5, 2), np.float32)
                    client.snapshot(None, {"rows": (keys, rows)}).result()
                    client.give_up("that was all")
                return rows
            trained, again, initial = train(), train(), read()
            assert (trained == again).all(), (trained, again)
            assert (trained[[1, 4]] == initial[[1, 4]]).all(), (trained, initial)
            assert (trained[[0, 2, 3]] < initial[[0, 2, 3]]).all(), (trained, initial)
        """)

    def test_an_own_end_is_quiet(self):
        """The servers say nothing of an end that the program wanted, or whose exception it shows."""
        for run, code in (("torch_run(at=5, leave=True)", 0), ("torch_run(at=5, do=fail)", 1), ("torch_run(at=5, do=press)", -2),
                          ("numpy_run(at=5, do=fail)", 1), ("numpy_run(at=5, do=press, servers=2)", -2)):
            for saved in (False, True) if code != -2 else (False,):
                with self.subTest(run, saved=saved):
                    self.folder = self.folder.with_name(f"saved-{hash(run)}")
                    given, said = self.run_program(run, saved=saved, code=code)
                    self.assertEqual(given, list(range(6)))
                    self.assertNotRegex(said, r"^weir: |\dZ [WE] |gave up|taken out")
                    if code == 1:
                        self.assertTrue(said.endswith("ValueError: mine\n"), said)
                    elif code == 0:
                        self.assertEqual(said, "")
                    # That of the initial values.
                    self.assertEqual([path.name for path in self.folder.glob("step-*")], ["step-00000000"] * saved)


if __name__ == "__main__":
    unittest.main()
