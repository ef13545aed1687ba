#!/usr/bin/python3
"""weir.torch.Reader follows a job."""
import json
import pathlib
import unittest

import support
import torch
import train
import weir
import weir.torch
from torch_jobs import STEPS, Run, job, serial_run


class Reader(unittest.TestCase):
    def test_an_evaluator(self):
        """It reads while a worker waits for it, and at the job's end; each time the weights of one step."""
        for flags in ([], ["--tls"]):
            with self.subTest(flags=flags):
                run = Run(self)
                done = support.run(run.up("--workers=2", "--ps=2", "--evaluator", *flags, program=["--hold_at=7"]))
                run.check(done, models=2)
                versions = [int(v) for v in (run.folder / "versions").read_text().split()]
                self.assertEqual(versions, sorted(set(versions)))
                self.assertTrue(any(0 < v < STEPS for v in versions), versions)
                self.assertEqual(versions[-1], STEPS)
                for name, value in torch.load(run.folder / "read.pt").items():
                    self.assertTrue(torch.equal(value, serial_run()[name]), name)

    def test_the_model_gets_its_own_weights_back(self):
        model = train.make_model()
        tensors = weir.torch.weights.ModelWeights(model)
        own = [p.clone() for p in model.parameters()]
        zeros = {name: weir.Tensor(t.shape) for name, t in tensors.tensors().items()}
        with weir.Client(job(), zeros, train.EXAMPLES) as client:
            with tensors.snapshot(client) as version:
                self.assertEqual(version, 0)
                self.assertTrue(all(not p.any() for p in model.parameters()))
            client.give_up("that was all")
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


if __name__ == "__main__":
    unittest.main()
