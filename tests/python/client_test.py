#!/usr/bin/python3
"""weir.Client on NumPy arrays, through real servers: each mode, each example once, and errors that say what to do."""
import asyncio
import concurrent.futures
import ctypes
import os
import pathlib
import threading
import time
import unittest
import unittest.mock

import numpy as np
import support
import weir

EXAMPLES, INPUTS, BATCH, EPOCHS = 120, 5, 10, 12
MODES = ({"mode": "sync", "parts": 2}, {"mode": "bounded", "staleness": 1},
         {"mode": "bounded", "staleness": 2, "prefetch": True}, {"mode": "async"})


def job(**more):
    fields = {"data": {"batch_size": BATCH}, "train": {"epochs": EPOCHS}, "server": {"min_shard_kib": 0},
              "optimizer": {"type": "adam", "learning_rate": 0.05}}
    return {**fields, **more}


def examples():
    random = np.random.default_rng(0)
    x = random.normal(size=(EXAMPLES, INPUTS)).astype(np.float32)
    return x, (x @ np.arange(INPUTS, dtype=np.float32) > 1).astype(np.float32)


def logistic(step, x, y):
    """The gradient and the loss of a batch of logistic regression."""
    x, y = x[step.examples], y[step.examples]
    p = 1 / (1 + np.exp(-(x @ step.weights["w"] + step.weights["b"])))
    error = (p - y) / len(y)
    loss = -np.mean(np.log(np.where(y > 0, p, 1 - p) + 1e-9))
    return {"w": x.T @ error, "b": error.sum()}, float(loss)


TENSORS = {"w": weir.Tensor((INPUTS,), "uniform", 0.1), "b": ()}


class Training(unittest.TestCase):
    def test_each_mode(self):
        x, y = examples()
        for consistency in MODES:
            for servers in (1, 2):
                with self.subTest(consistency=consistency, servers=servers):
                    seen = np.zeros(EXAMPLES, int)
                    result = {"w": np.empty(INPUTS, np.float32), "b": np.empty((), np.float32)}
                    losses = []
                    with weir.Client(job(consistency=consistency), TENSORS, EXAMPLES, servers=servers) as client:
                        for step in client.steps(result):
                            gradient, loss = logistic(step, x, y)
                            step.push(gradient, loss=loss)
                            np.add.at(seen, step.examples, 1)
                            losses.append(loss)
                    self.assertEqual(set(seen), {EPOCHS})
                    self.assertGreater(np.mean((x @ result["w"] + result["b"] > 0) == y), 0.9)
                    self.assertLess(np.mean(losses[-10:]), np.mean(losses[:10]) / 2)

    def test_the_parts_of_the_loop(self):
        """What steps() is made of, and memory of the servers."""
        x, y = examples()
        with weir.Client(job(consistency={"mode": "sync"}), TENSORS, EXAMPLES) as client:
            self.assertEqual(client.worker, 0)
            self.assertTrue(client.leading)
            clocks = 0
            while (work := client.next_work()) is not None:
                weights = client.view(work.clock).result(timeout=60)
                self.assertEqual(weights.version, work.clock)
                w = weights["w"]
                self.assertFalse(w.flags.writeable)
                gradient = client.new_gradient()
                self.assertEqual(list(gradient), ["w", "b"])
                gradient["w"][:] = w
                gradient["b"][...] = 1
                np.testing.assert_array_equal(gradient.flat, [*w, 1])
                before = w.copy()
                pushed = client.push(work, weights, gradient).result(timeout=60)
                self.assertTrue(pushed.applied)
                del weights  # the array keeps its view
                np.testing.assert_array_equal(w, before)
                clocks += 1
            self.assertEqual(clocks, EPOCHS * EXAMPLES // BATCH)
            into = {"w": np.empty(INPUTS, np.float32), "b": np.empty((), np.float32)}
            self.assertEqual(client.snapshot(into).result().version, clocks)

    def test_weights_cannot_be_changed_in_a_step(self):
        """The servers would not have the change."""
        with weir.Client(job(consistency={"mode": "sync"}, train={"examples": 2 * BATCH}), TENSORS, EXAMPLES) as client:
            for step in client.steps():
                for array in step.weights.values():
                    with self.assertRaisesRegex(ValueError, "read-only"):
                        array[...] = 1
                    with self.assertRaisesRegex(ValueError, "read-only"):
                        np.clip(array, 0, 1, out=array)
                self.assertEqual(list(step.weights), list(TENSORS))
                step.push({name: np.zeros_like(array) for name, array in step.weights.items()})

    def test_running_statistics(self):
        """They are assigned: the mean over a step's parts, or the newest push. Clipping leaves them alone."""
        for mode, expected in (("sync", 2), ("async", 3)):
            result = {"s": np.empty(2, np.float32), "w": np.empty(3, np.float32)}
            config = job(train={"examples": 2 * BATCH, "clip_norm": 0.5}, optimizer={"type": "sgd", "learning_rate": 1},
                         consistency={"mode": mode, **({"parts": 2} if mode == "sync" else {})})
            with weir.Client(config, {"s": weir.Tensor((2,), buffer=True), "w": (3,)}, EXAMPLES) as client:
                for i, step in enumerate(client.steps(result)):
                    step.push({"s": np.full(2, 1 + 2 * i, np.float32), "w": np.array([0, 0, 1], np.float32)})
            np.testing.assert_array_equal(result["s"], [expected] * 2)
            np.testing.assert_allclose(result["w"], [0, 0, -0.5 if mode == "sync" else -1])

    def test_clipping_by_value(self):
        """train.clip_value comes before train.clip_norm. A value that is not a number stays one."""
        for norm, expected in ((0, [-0.5, 0.25, 0.5]), (0.375, [-0.25, 0.125, 0.25])):
            result = {"s": np.empty(2, np.float32), "w": np.empty(3, np.float32)}
            config = job(train={"steps": 1, "clip_value": 0.5, "clip_norm": norm}, optimizer={"type": "sgd", "learning_rate": 1})
            with weir.Client(config, {"s": weir.Tensor((2,), buffer=True), "w": (3,)}, EXAMPLES) as client:
                for step in client.steps(result):
                    step.push({"s": np.full(2, 3, np.float32), "w": np.array([3, -0.25, -np.inf], np.float32)})
            np.testing.assert_array_equal(result["s"], [3, 3])
            np.testing.assert_array_equal(result["w"], expected)
        with self.assertRaisesRegex(weir.Error, "is NaN"), weir.Client(config, TENSORS, EXAMPLES) as client:
            for step in client.steps():
                step.push({name: np.full_like(array, np.nan) for name, array in step.weights.items()})

    def test_the_clipped_mean(self):
        """With train.clip "mean" a part is pushed as it is, and the mean over the parts is clipped."""
        for clip, expected in (("mean", [-0.6, -0.8, 0]), ("push", [-0.5, -0.5, 0])):
            result = {"s": np.empty(2, np.float32), "w": np.empty(3, np.float32)}
            config = job(train={"steps": 1, "clip_norm": 1, "clip": clip}, optimizer={"type": "sgd", "learning_rate": 1},
                         consistency={"mode": "sync", "parts": 2})
            with weir.Client(config, {"s": weir.Tensor((2,), buffer=True), "w": (3,)}, EXAMPLES) as client:
                for i, step in enumerate(client.steps(result)):
                    step.push({"s": np.full(2, 3, np.float32), "w": np.array([[3, 0, 0], [0, 4, 0]][i], np.float32)})
            np.testing.assert_array_equal(result["s"], [3, 3])
            np.testing.assert_allclose(result["w"], expected, rtol=1e-6)

    def test_a_length_in_steps(self):
        for mode in ("sync", "async"):
            config = job(train={"steps": 5}, consistency={"mode": mode, **({"parts": 2} if mode == "sync" else {})})
            with weir.Client(config, TENSORS, EXAMPLES) as client:
                batches = 0
                for step in client.steps():
                    step.push({name: np.zeros_like(array) for name, array in step.weights.items()})
                    batches += 1
            self.assertEqual(batches, 10 if mode == "sync" else 5)

    def test_a_gradient_that_leaves_in_parts(self):
        """Step.ready(): the result is the same, whether a gradient travels in one message or several."""
        for wide in (10, 70_000):
            results = []
            for early in ((), ("a",), ("b", "a")):
                result = {name: np.empty(wide, np.float32) for name in "ab"}
                tensors = {name: weir.Tensor((wide,), "uniform", 0.1) for name in "ab"}
                config = job(train={"examples": 30}, consistency={"mode": "sync"}, wire={"chunk_kib": 256})
                with weir.Client(config, tensors, EXAMPLES) as client:
                    self.assertEqual(client.gains_from_gate, wide > 10)
                    for step in client.steps(result):
                        for name in early:
                            step.gradient[name][:] = step.weights[name] + step.work.clock
                            step.ready(name)
                        for name in "ab":
                            if name not in early:
                                step.gradient[name][:] = step.weights[name] + step.work.clock
                        step.push()
                results.append(result)
            for result in results[1:]:
                for name in "ab":
                    np.testing.assert_array_equal(result[name], results[0][name])

    def test_initial_weights(self):
        w = np.arange(INPUTS, dtype=np.float32)
        with support.folder() as folder:
            initial = pathlib.Path(folder) / "initial"
            weir.save_weights(initial, {"w": w, "b": np.float32(7)})
            with self.assertRaises(weir.Error):  # they stay
                weir.save_weights(initial, {"w": w, "b": np.float32(8)})
            for servers in (1, 2):
                with weir.Client(job(checkpoint={"init_from": str(initial)}), TENSORS, EXAMPLES, servers=servers) as client:
                    into = {"w": np.empty(INPUTS, np.float32), "b": np.empty((), np.float32)}
                    client.pull(0, into).result()
                    np.testing.assert_array_equal(into["w"], w)
                    self.assertEqual(into["b"], 7)

    def test_initial_arrays(self):
        """The values that a worker gives are the job's; checkpoint.init_from comes before them."""
        w = np.arange(INPUTS, dtype=np.float64)
        into = {"w": np.empty(INPUTS, np.float32), "b": np.empty((), np.float32)}
        with support.folder() as folder:
            initial = pathlib.Path(folder) / "initial"
            weir.save_weights(initial, {"w": -w, "b": np.float32(7)})
            for servers, more, sign in ((1, {}, 1), (2, {}, 1), (1, {"checkpoint": {"init_from": str(initial)}}, -1)):
                with weir.Client(job(**more), {"w": w, "b": np.float32(7)}, EXAMPLES, servers=servers) as client:
                    client.pull(0, into).result()
                    np.testing.assert_array_equal(into["w"], sign * w)
                    self.assertEqual(into["b"], 7)

    def test_the_order_is_that_of_the_job(self):
        order = weir.ExampleOrder(EXAMPLES, 3)
        epoch = order(0, EXAMPLES)
        self.assertEqual(sorted(epoch), list(range(EXAMPLES)))
        np.testing.assert_array_equal(order(7, 20), epoch[7:27])
        self.assertNotEqual(list(order(EXAMPLES, EXAMPLES)), list(epoch))

    def test_the_order_in_two_threads(self):
        """The library's order is for one at a time."""
        order, fill = weir.ExampleOrder(EXAMPLES, 3), weir.job.library.fill_order
        meeting, met = threading.Barrier(2), []

        def one_at_a_time(*args):
            try:
                meeting.wait(0.3)
                met.append("two threads are in it")
            except threading.BrokenBarrierError:
                pass
            fill(*args)

        with unittest.mock.patch.object(weir.job.library, "fill_order", one_at_a_time):
            with concurrent.futures.ThreadPoolExecutor(2) as threads:
                found = list(threads.map(lambda start: order(start, EXAMPLES), (0, EXAMPLES)))
        self.assertEqual(met, [])
        np.testing.assert_array_equal(np.concatenate(found), order(0, 2 * EXAMPLES))


class Memberships(unittest.TestCase):
    """The loop when a membership ends, by calls in place of the library's; what the servers make of it is in other tests."""

    def lose(self, method, at, joins=lambda client: None):
        """The batches that a loop gives which loses its membership in the call of this number."""
        client = weir.Client(job(consistency={"mode": "sync"}, train={"epochs": 1}), TENSORS, EXAMPLES)
        self.addCleanup(client.close)
        client.join()
        call, leave, calls, seen = getattr(client, method), client.leave, [], []

        def fenced(*args):
            calls.append(args)
            if len(calls) == at:
                if method == "leave":
                    client._joined = False
                raise weir.Fenced("for the test")
            return call(*args)

        def left(failure=None, timeout=None):
            if failure is None:
                return leave()
            client._joined = False

        def join():
            joins(client)
            client._joined = True

        client.leave, client.join = left, join
        call = getattr(client, method)
        setattr(client, method, fenced)
        result = {"w": np.empty(INPUTS, np.float32), "b": np.empty((), np.float32)}
        for step in client.steps(result):
            joins.step = step
            seen.append(step.work.batch)
            step.gradient.flat[:] = 0
            step.push()
        return seen

    def test_it_joins_again(self):
        """Where it asks for work, and when it takes leave: the job has gone back then."""
        for method, at in (("next_work", 4), ("leave", 1), ("snapshot", 1)):
            with self.subTest(method):
                joined = []
                seen = self.lose(method, at, lambda client: joined.append(client))
                self.assertEqual(len(joined), 1)
                self.assertEqual(seen, list(range(EXAMPLES // BATCH)))

    def test_memberships_without_progress(self):
        """After ten, and after cluster.start_seconds, join() raises (memberships_test.cc)."""
        program = """if True:
            import os, pathlib, sys, time, weir
            told, memberships = pathlib.Path(sys.argv[2]), 0
            with weir.Client(sys.argv[1], {"w": (3,)}, 8) as client:
                try:
                    while client.worker == 1:
                        memberships += 1
                        client.leave(weir.Fenced("for the test"))
                        client.join()
                except weir.Fenced as error:
                    told.write_text(f"{memberships} {error}")
                    os._exit(0)
                while not told.exists():
                    time.sleep(0.01)
                for step in client.steps():
                    step.gradient.flat[:] = 0
                    step.push()
        """
        with support.folder() as name:
            folder = pathlib.Path(name)
            path = support.write_job(folder / "job.json", data={"batch_size": 2}, train={"epochs": 1}, cluster={"start_seconds": 15})
            done = support.run(support.up(path, ["-c", program, path, folder / "told"], "--workers=2"))
            self.assertEqual(done.returncode, 0, done.stderr)
            memberships, said = (folder / "told").read_text().split(" ", 1)
        self.assertGreaterEqual(int(memberships), 10)
        self.assertEqual(said, f"for the test; that was {memberships} times in a row without any progress, for longer than "
                               "cluster.start_seconds = 15, and is the last")

    def test_a_step_whose_call_finds_the_membership_lost(self):
        """It joins again for the call, and sends nothing any more."""
        client = weir.Client(job(wire={"chunk_kib": 256}, consistency={"mode": "sync"}), {"w": (70_000,)}, EXAMPLES)
        self.addCleanup(client.close)
        step, done = next(client.steps()), []
        client.leave, client.join = lambda failure: done.append(str(failure)), lambda: done.append("joined")

        def call():
            if not done:
                raise weir.Fenced("for the test")
            return 7

        self.assertEqual(step.as_member(call), 7)
        self.assertEqual(done, ["for the test", "joined"])
        client._exchange = client.pull_rows = None
        step.ready("w")
        step.prefetch_rows({})
        step.push()
        self.assertTrue(step.pushed)

    def test_memory_of_the_membership_before(self):
        """It is gone before the next one's is there; but for the weights of the step, which the program has."""
        def joins(client):
            loop = joins.step._loop
            self.assertEqual((loop._views, loop._spare, loop._pushes, loop._next), ([], [], [], None))
            joined.append(client)

        joined = []
        self.lose("next_work", 4, joins)
        self.assertEqual(len(joined), 1)


class Errors(unittest.TestCase):
    def client(self, **more):
        return weir.Client(job(**more), TENSORS, EXAMPLES)

    def error(self, kind, text, call):
        with self.assertRaises(kind) as caught:
            call()
        self.assertIn(text, str(caught.exception))
        return caught.exception

    def test_version(self):
        self.assertEqual(support.run([support.ROOT / "cli/weir", "--version"]).stdout, f"weir {weir.__version__}\n")

    def test_config(self):
        error = self.error(weir.ConfigError, "train.epochs: must be a number in (0, 1e+09], got -1",
                           lambda: self.client(train={"epochs": -1}))
        self.assertEqual(error.exit_code, 78)
        self.error(weir.ConfigError, "no-such.json", lambda: weir.Job("no-such.json"))
        self.error(weir.ConfigError, "weir up --workers=3", lambda: self.client(cluster={"workers": 3}))
        self.error(weir.ConfigError, "must be one of constant, normal, uniform",
                   lambda: weir.Client(job(), {"w": weir.Tensor((2,), "zeros")}, 8))
        self.error(weir.ConfigError, "got 0", lambda: weir.Client(job(), TENSORS, 0))
        self.error(weir.ConfigError, "b is given without values, and w with them",
                   lambda: weir.Client(job(), {"w": np.zeros(2), "b": ()}, 8))
        self.error(weir.ConfigError, "the initial value w[1] is NaN",
                   lambda: weir.Client(job(), {"w": np.array([0, np.nan])}, 8).join())
        self.assertEqual(weir.Job(job(), ["train.epochs=3"]).get("train.epochs"), 3)
        for text in ("", "{}", "[1]"):
            with unittest.mock.patch.dict(os.environ, WEIR_SET=text):
                self.error(weir.ConfigError, "WEIR_SET must be a list", lambda: weir.Job(job()))

    def test_paths(self):
        home = "/home/someone"
        self.enterContext(unittest.mock.patch.dict(os.environ, HOME=home))
        self.assertEqual(weir.Job(job(), ["checkpoint.directory=~/runs"]).get("checkpoint.directory"), f"{home}/runs")
        self.assertEqual(weir.Job(job(), ["checkpoint.directory=runs"]).get("checkpoint.directory"),
                         os.path.abspath("runs"))
        for path, text in ("$HOME/runs", "has $HOME in it"), ("gs://b/runs", "begins with gs:"):
            self.error(weir.ConfigError, text, lambda path=path: weir.Job(job(), [f"checkpoint.directory={path}"]))
            self.error(weir.ConfigError, text, lambda path=path: weir.Job(path))
            self.error(weir.ConfigError, text,
                       lambda path=path: weir.Client(job(), TENSORS, 8, history=path).close())

    def test_arrays(self):
        ok = {"w": np.zeros(INPUTS, np.float32), "b": np.zeros((), np.float32)}
        read_only = np.zeros(INPUTS, np.float32)
        read_only.flags.writeable = False
        cases = [({"w": ok["w"]}, "b must be an array, got NoneType"),
                 ({**ok, "w": np.zeros(INPUTS)}, "w must be float32 of shape (5,), C-contiguous and writeable; got float64"),
                 ({**ok, "w": np.zeros(4, np.float32)}, "of shape (4,)"),
                 ({**ok, "w": np.zeros((INPUTS, 2), np.float32)[:, 0]}, "not C-contiguous"),
                 ({**ok, "w": read_only}, "read-only"), ({**ok, "c": ok["b"]}, "no tensor 'c'; it has w, b")]
        with self.client() as client:
            for arrays, text in cases:
                with self.subTest(text):
                    self.error(weir.ConfigError, text, lambda: client.pull(0, arrays))
            client.pull(0, ok).result()
            # Not when the job is done.
            wrong = {**ok, "w": np.zeros(INPUTS)}
            self.error(weir.ConfigError, "steps: w must be float32", lambda: next(client.steps(wrong)))
        self.error(weir.ConfigError, "closed", lambda: client.next_work())

    def test_arguments_in_another_order(self):
        order = "The order is weir.Client(job, tensors, train_examples)"
        for call, text in ((lambda: weir.Client(job(), EXAMPLES, TENSORS), f"got int and dict. {order}"),
                           (lambda: weir.Client(job(), TENSORS, "120"), f"got dict and str. {order}"),
                           (lambda: weir.Client(EXAMPLES, TENSORS, EXAMPLES), "job must be the path of a job's config, or a mapping"),
                           (lambda: weir.Client({"w": np.zeros(3)}, job(), EXAMPLES), "job must be a mapping with the fields of a job's"),
                           (lambda: weir.save_weights({"w": np.zeros(3)}, "folder"), "got str; the order is weir.save_weights(")):
            self.error(weir.ConfigError, text, call)

    def test_a_loss_or_a_gradient_of_another_type(self):
        with self.client() as client:
            step = next(client.steps())
            step.gradient.flat[:] = 0
            for loss, text in (("0.5", "got str"), (np.zeros(3), "got ndarray of shape (3,)"), ([0.5], "got list"), (1j, "got complex")):
                self.error(weir.ConfigError, f"loss must be one number, the mean loss over the batch's examples; {text}",
                           lambda: step.push(loss=loss))
            self.error(weir.ConfigError, "got float; give the loss by its name: push(loss=loss)", lambda: step.push(0.5))
            step.push(loss=np.float32([[0.5]]))

    def test_an_empty_dict_gets_arrays(self):
        trained, read = {}, {}
        with self.client() as client:
            for step in client.steps(trained):
                if step.work.batch == 0:
                    client.snapshot(read).result()
                    np.testing.assert_array_equal(read["w"], step.weights["w"])
                step.gradient.flat[:] = 1
                step.push()
        self.assertEqual({name: (a.shape, a.dtype) for name, a in trained.items()},
                         {"w": ((INPUTS,), np.float32), "b": ((), np.float32)})
        self.assertFalse(np.array_equal(trained["w"], read["w"]))

    def test_a_push_that_lacks_something(self):
        gradient = {"w": np.zeros(INPUTS, np.float32), "b": np.zeros((), np.float32)}
        with self.client() as client:
            work = client.next_work()
            base = client.view(work.clock).result()
            for call in (client.push, client.push_pull):
                for wrong in (None, gradient):
                    self.error(weir.ConfigError, f"push: base must be the Weights that the gradient was computed from, got {type(wrong).__name__}",
                               lambda: call(work, wrong, gradient))
                self.error(weir.ConfigError, "push: the gradient must be arrays by name, got NoneType", lambda: call(work, base, None))
                self.error(weir.ConfigError, "push: work must be what next_work() returns, got NoneType", lambda: call(None, base, gradient))
            # As a program in another language may call it.
            order = weir._library.Work(work.clock, work.batch, 0, BATCH, BATCH, 0, 1)
            push = weir._library.Push(ctypes.pointer(order), None, client.model.place(gradient, "push", writeable=False)[1])
            future = weir.Future(weir._library.library.exchange(client._handle, push, None),
                                 lambda f: weir.errors.check(weir._library.library.take(f)))
            self.error(weir.ConfigError, "a push has no base", future.result)

    def test_a_gradient_that_is_not_finite(self):
        def run():
            with self.client() as client:
                for step in client.steps():
                    step.gradient.flat[:] = np.nan
                    step.push()

        error = self.error(weir.Diverged, "the gradient of w[0] is NaN at clock 0, batch 0 (examples 0 to 9 in the job's order); look for NaN",
                           run)
        self.assertEqual(error.exit_code, 70)

    def test_a_step_that_is_not_pushed(self):
        def run(pushes):
            with self.client() as client:
                for step in client.steps():
                    for _ in range(pushes):
                        step.gradient.flat[:] = 0
                        step.push()

        self.error(weir.Error, "was not pushed", lambda: run(0))
        self.error(weir.Error, "pushed already", lambda: run(2))

    def test_a_gate(self):
        """A push with a gate begins with the tensors that are ready, and ends when it is given up."""
        tensors = {"a": (70_000,), "b": (140_000,)}
        config = job(wire={"chunk_kib": 256}, consistency={"mode": "sync"})

        def push(use):
            with weir.Client(config, tensors, EXAMPLES) as client:
                work, gate = client.next_work(), client.new_gate()
                arrays = {name: np.zeros(shape, np.float32) for name, shape in tensors.items()}
                base = client.pull(0, arrays).result()
                future = client.push(work, base, arrays, gate)
                use(arrays, gate)
                future.result(timeout=support.LIMIT_SECONDS)

        def not_finite(arrays, gate):
            arrays["b"][:] = np.nan
            gate.ready("b")

        def fail(_, gate):
            gate.ready("a")
            gate.fail("lost interest")

        self.error(weir.Diverged, "the gradient of b[", lambda: push(not_finite))
        self.error(weir.Error, "lost interest", lambda: push(fail))
        self.error(weir.ConfigError, "no tensor 'c'; it has a, b", lambda: push(lambda _, gate: gate.ready("c")))

    def test_a_gradient_that_has_begun_to_leave(self):
        def run(use):
            with weir.Client(job(wire={"chunk_kib": 256}, consistency={"mode": "sync"}), {"w": (70_000,)}, EXAMPLES) as client:
                for step in client.steps():
                    step.gradient.flat[:] = 0
                    step.ready("w")
                    use(step)

        self.error(weir.Error, "call push() without a gradient", lambda: run(lambda step: step.push({"w": np.zeros(70_000)})))
        self.error(weir.Error, "pushed already", lambda: run(lambda step: (step.push(), step.ready("w"))))
        self.error(weir.Error, "was not pushed", lambda: run(lambda step: None))

    def test_a_limit(self):
        """Two parts, of which this worker computes one after the other: there is no work before the first is pushed."""
        with self.client(consistency={"mode": "sync"}) as client:
            client.next_work()
            future = client.begin_next_work()
            with self.assertRaises(TimeoutError):
                future.result(timeout=0.05)
            self.assertFalse(future.done())

    def test_work_of_a_call_that_was_given_up_comes_with_the_next_call(self):
        """After a timeout, or where a future was dropped."""
        def with_timeout(client):
            begin = time.monotonic()
            while True:
                try:
                    return client.next_work(timeout=0)
                except TimeoutError as error:
                    self.assertLess(time.monotonic() - begin, support.LIMIT_SECONDS)
                    kept.append(error)  # and with it the call's frames

        def dropped(client):
            for _ in range(3):
                client.begin_next_work()
            return client.next_work()

        for take in (with_timeout, dropped):
            for consistency in MODES:
                with self.subTest(take.__name__, **consistency):
                    kept, seen = [], []
                    with self.client(consistency=consistency, cluster={"wait_seconds": 2}, train={"epochs": 1}) as client:
                        while (work := take(client)) is not None:
                            seen.append(work.batch)
                            gradient = {"w": np.zeros(INPUTS, np.float32), "b": np.zeros((), np.float32)}
                            push = client.push(work, client.view(work.clock).result(), gradient)
                            if consistency["mode"] != "sync":
                                push.result()
                    self.assertEqual(seen, list(range(EXAMPLES // BATCH)))

    def test_a_call_of_a_membership_that_has_ended(self):
        """It is not what the next membership's call goes on with."""
        with self.client() as client:
            kept = client.begin_next_work()
            client.begin_next_work()
            calls = client._work_calls
            self.assertEqual(len(calls._unanswered), 1)
            client.leave(weir.Fenced("for the test"))
            del kept
            self.assertEqual(calls._unanswered, [])
            self.assertIsNot(client._work_calls, calls)

    def test_await(self):
        """A coroutine waits for a future while others go on. If it is cancelled, the call goes on."""
        async def main(client):
            ticks = 0

            async def tick():
                nonlocal ticks
                while True:
                    ticks += 1
                    await asyncio.sleep(0)
            ticking = asyncio.create_task(tick())
            work = await client.begin_next_work()
            second = client.begin_next_work()
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(second, 0.05)
            self.assertFalse(second.done())
            self.assertGreater(ticks, 1)
            arrays = {"w": np.empty(INPUTS, np.float32), "b": np.empty((), np.float32)}
            base = await client.pull(work.clock, arrays)
            pushed = await client.push(work, base, arrays)
            self.assertTrue(pushed.applied)
            self.assertEqual((await second).clock, work.clock + 1)
            ticking.cancel()

        with self.client(consistency={"mode": "sync"}) as client:
            asyncio.run(main(client))

    def test_a_block_that_ends_early(self):
        """The worker gives up, and says why; unless it has no more work."""
        def reason(use):
            reasons = []
            # What waits for this worker's pushes would fail when it starts no more.
            with self.client(cluster={"start_seconds": 2}) as client:
                leave = client.leave
                client.leave = lambda failure=None, timeout=None: (reasons.append(failure), leave(failure, timeout))
                use(client)
            (reason,) = reasons
            return reason

        def leave_the_loop(client):
            for step in client.steps():
                break

        def finish(client):
            while (work := client.next_work()) is not None:
                gradient = {"w": np.zeros(INPUTS, np.float32), "b": np.zeros((), np.float32)}
                client.push(work, client.view(work.clock).result(), gradient).result()

        for use in (lambda client: None, lambda client: client.next_work(), leave_the_loop):
            self.assertIn("its `with` block ended before the job was done", str(reason(use)))
        self.assertIsNone(reason(finish))

    def test_a_call_as_another_thread_closes(self):
        """It has looked whether the client is open, and then the other thread closes it."""
        client = self.client()
        client.join()
        live = client._live()
        client.close()
        with unittest.mock.patch.object(client, "_live", lambda: live):
            for call in (client.next_work, lambda: client.pull(0, {"w": np.zeros(INPUTS, np.float32), "b": np.zeros((), np.float32)}).result(),
                         lambda: client.worker, client.new_gradient, client.leave, client.join, lambda: client.set_progress(1, 1, 1)):
                self.error(weir.ConfigError, "this client is closed", call)
        self.error(weir.ConfigError, "this client is closed", client.next_work)

    def test_not_in_the_job(self):
        client = self.client()
        self.error(weir.ConfigError, "join first", client.next_work)
        client.close()


if __name__ == "__main__":
    unittest.main()
