#!/usr/bin/python3
"""weir.torch.Reader follows a job."""
import hashlib
import json
import pathlib
import types
import unittest
import unittest.mock

import numpy as np
import support
import torch
import train
import weir
import weir.torch
from torch_jobs import STEPS, Run, job, serial_run


class Reader(unittest.TestCase):
    def test_an_evaluator(self):
        """It reads while a worker waits for it, and at the job's end; each time the weights of one step. What it reports
        last is in the summary."""
        for flags in ([], ["--tls"]):
            with self.subTest(flags=flags):
                run = Run(self)
                summary = run.folder / "summary.json"
                done = support.run(run.up("--workers=2", "--ps=2", "--evaluator", f"--summary={summary}", *flags,
                                          program=["--hold_at=7"]))
                run.check(done, models=2)
                versions = [int(v) for v in (run.folder / "versions").read_text().split()]
                self.assertEqual(versions, sorted(set(versions)))
                self.assertTrue(any(0 < v < STEPS for v in versions), versions)
                self.assertEqual(versions[-1], STEPS)
                expected = serial_run()
                for name, value in torch.load(run.folder / "read.pt").items():
                    self.assertTrue(torch.equal(value, expected[name]), name)
                model = train.make_model()
                model.load_state_dict(expected)
                result, said = train.measure(model, train.Examples()), json.loads(summary.read_text())
                self.assertEqual((said["test_loss"], said["test_accuracy"]), (result["loss"], result["accuracy"]))
                values = b"".join(value.numpy().tobytes() for value in expected.values())
                self.assertEqual(said["weights_sha256"], hashlib.sha256(values).hexdigest())

    def test_the_model_gets_its_own_weights_back(self):
        model = train.make_model()
        tensors = weir.torch.weights.ModelWeights(model)
        own = [p.clone() for p in model.parameters()]
        zeros = {name: weir.Tensor(t.shape) for name, t in tensors.tensors().items()}
        with weir.Client(job(), zeros, train.EXAMPLES) as client:
            with tensors.snapshot(client) as weights:
                self.assertEqual(weights.version, 0)
                self.assertTrue(all(not p.any() for p in model.parameters()))
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(own, model.parameters())))

    def test_misuse_is_refused_with_what_to_do(self):
        spec = {"cluster": {"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}}
        with support.folder() as folder:
            cluster = pathlib.Path(folder) / "cluster.json"
            cluster.write_text(json.dumps(spec))
            initial = {"init_from": folder}

            def train_as(task):
                opt = weir.torch.Optimizer(train.make_model(), job(checkpoint=initial), train.Examples(), cluster=str(cluster),
                                           task=task)
                next(opt.loader())

            def read(**where):
                weir.torch.Reader(train.make_model(), job(), **where)

            cases = [("a reader needs a cluster", read),
                     ("this program evaluates, but its task is worker:0; make it an evaluator",
                      lambda: read(cluster=str(cluster), task="worker:0")),
                     ("this program trains, but its task is evaluator:0", lambda: train_as("evaluator:0"))]
            for text, call in cases:
                with self.subTest(text):
                    with self.assertRaises(weir.ConfigError) as caught:
                        call()
                    self.assertIn(text, str(caught.exception))
            read(cluster=str(cluster))

            reader = weir.torch.Reader(train.make_model(), job(), cluster=str(cluster))
            with self.assertRaisesRegex(weir.Error, r"within `with reader.snapshot\(\)"):
                reader.report(loss=0, examples=1)
            with self.assertRaisesRegex(weir.ConfigError, "give it evaluate=, test="):
                next(reader.evaluations())
            asked = weir.torch.Reader(train.make_model(), job(), cluster=str(cluster), evaluate=len)
            with self.assertRaisesRegex(weir.ConfigError, r"loop over evaluations\(\)"):
                next(asked.versions())

    def test_the_last_report_is_of_the_end(self):
        """Also where the weights of the end are read before it is known to be the end, or have changed on a server that is
        ahead of the others. A report that finds the membership lost is not of the end: the job may have gone back."""
        class Future:
            def __init__(self, value=None):
                self.result = lambda: value

        class Client:
            """Each read finds the next of these: version, value of the weights, whether the job is done by then. The first
            report of a value in `fenced` finds the membership lost."""

            def __init__(self, *_, **__):
                self.job, self.model = weir.Job(job()), weir.job.Model(weir.torch.weights.ModelWeights(model).tensors())
                self.tables = weir.tables.Tables(self.job)
                self.reports, self._reads, self._fenced = [], iter(reads), set(fenced)
                self._next = next(self._reads)

            @property
            def draining(self):
                return self._next[2]

            def wait_draining(self, seconds):
                return self.draining

            def snapshot(self, into, rows=None):
                (version, value, _), self._next = self._next, next(self._reads, None)
                for array in into.values():
                    array[...] = value
                return Future(types.SimpleNamespace(version=version))

            def leave(self, failure):
                pass

            def join(self):
                pass

            def report(self, of, *, loss, examples, accuracy, final_sha256):
                if loss in self._fenced:
                    self._fenced.remove(loss)
                    raise weir.Fenced("lost")
                self.reports.append((of.version, loss, final_sha256 is not None))
                return Future()

        model = train.make_model()
        cases = [([(1, 1, False), (1, 1, False), (2, 2, False), (2, 2, True)], [(1, 1, False), (2, 2, False), (2, 2, True)], []),
                 ([(1, 1, False), (2, 2, True)], [(1, 1, False), (2, 2, True)], []),
                 ([(2, 2, False), (2, 3, True)], [(2, 2, False), (2, 3, True)], []),
                 ([(2, 2, True), (1, 1, False), (2, 3, True)], [(2, 2, False), (1, 1, False), (2, 3, True)], [2]),
                 ([(2, 2, True), (2, 2, True)], [(2, 2, False), (2, 2, True)], [2])]
        for reads, expected, fenced in cases:
            with self.subTest(reads=reads), unittest.mock.patch("weir.torch.reader.Client", Client):
                reader = weir.torch.Reader(model, job())
                for _ in reader.versions(interval=0):
                    reader.report(loss=model[0].bias[0].item(), examples=10)
                self.assertEqual(reader.client.reports, expected)

    def test_what_a_report_holds(self):
        with weir.Client(job(), {"w": (3,)}, train.EXAMPLES) as client:
            weights = client.snapshot({"w": np.empty(3, np.float32)}).result()
            for text, wrong in (("examples must be at least 1, got 0", {"examples": 0}),
                                ("accuracy must be in \\[0, 1\\].*got 93.5", {"accuracy": 93.5})):
                with self.assertRaisesRegex(weir.ConfigError, text):
                    client.report(weights, **{"loss": 0.5, "examples": 10, **wrong})
            client.report(weights, loss=0.5, examples=10).result()


if __name__ == "__main__":
    unittest.main()
