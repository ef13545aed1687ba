#!/usr/bin/python3
"""weir.Client on tensors of PyTorch: in their memory, or with an error that says why not."""
import unittest

import numpy as np
import support  # pylint: disable=unused-import
import torch
import weir

JOB = {"data": {"batch_size": 4}, "train": {"epochs": 3}, "consistency": {"mode": "sync"},
       "optimizer": {"type": "sgd", "learning_rate": 0.5}}
TENSORS = {"w": weir.Tensor((2, 3), "uniform", 1), "b": ()}


def client():
    return weir.Client(JOB, TENSORS, 8)


class DLPack(unittest.TestCase):
    def test_a_step_in_the_memory_of_tensors(self):
        with client() as c:
            work = c.next_work()
            weights = {"w": torch.zeros(2, 3), "b": torch.zeros(())}
            base = c.pull(work.clock, weights).result()
            before = c.view(work.clock).result()["w"].copy()
            np.testing.assert_array_equal(weights["w"].numpy(), before)
            self.assertGreater(np.abs(before).max(), 0)
            gradient = {"w": torch.arange(6.).reshape(2, 3), "b": torch.tensor(2.)}
            c.push_pull(work, base, gradient, weights).result()
            np.testing.assert_array_equal(weights["w"].numpy(), before - np.float32(0.5) * np.arange(6, dtype=np.float32).reshape(2, 3))
            self.assertEqual(float(weights["b"]), -1)
            newest = {"w": torch.zeros(2, 3), "b": torch.zeros(())}
            c.snapshot(newest).result()
            self.assertTrue(torch.equal(newest["w"], weights["w"]))

    def test_the_loop(self):
        for clip_norm in (0, 1):
            trained = {"w": torch.zeros(2, 3), "b": torch.zeros(())}
            with weir.Client({**JOB, "train": {"epochs": 3, "clip_norm": clip_norm}}, TENSORS, 8) as c:
                for step in c.steps(trained):
                    step.push({"w": torch.zeros(2, 3), "b": torch.tensor(3.)})
            # Six steps with a rate of one half.
            self.assertEqual(float(trained["b"]), -3.0 if clip_norm else -9.0)

    def test_the_librarys_memory_as_a_tensor(self):
        with client() as c:
            gradient = c.new_gradient()
            tensor = torch.from_dlpack(gradient["w"])
            tensor.fill_(7)
            np.testing.assert_array_equal(gradient.flat[:6], 7)
            del gradient
            self.assertEqual(float(tensor.sum()), 42)  # the tensor keeps the memory

    def test_what_cannot_be_used(self):
        ok = {"w": torch.zeros(2, 3), "b": torch.zeros(())}
        cases = (({**ok, "w": torch.zeros(2, 3, requires_grad=True)}, "got a torch.Tensor: .*detach"),
                 ({**ok, "w": torch.zeros(2, 3, dtype=torch.bfloat16)}, "pull: w must be float32 in the host's memory"),
                 ({**ok, "w": torch.zeros(2, 3, dtype=torch.float64)}, "got float64"),
                 ({**ok, "w": torch.zeros(3, 2)}, r"of shape \(2, 3\).*got float32 of shape \(3, 2\)"),
                 ({**ok, "w": torch.zeros(3, 2).T}, "not C-contiguous"),
                 ({**ok, "w": [[0.0] * 3] * 2}, "w must be an array, got list"),
                 ({**ok, "b": np.float32(0)}, "b must be .* and writeable; got .*read-only"))
        with client() as c:
            work = c.next_work()
            for arrays, text in cases:
                with self.subTest(text), self.assertRaisesRegex(weir.ConfigError, text):
                    c.pull(work.clock, arrays)
            with self.assertRaisesRegex(weir.ConfigError, "snapshot: w .*detach"):
                c.snapshot(cases[0][0])
            with self.assertRaisesRegex(weir.ConfigError, "push: w .*detach"):
                c.push(work, c.pull(work.clock, ok).result(), cases[0][0])

    def test_initial_values(self):
        for given in (torch.full((2, 3), 7.), torch.full((2, 3), 7, dtype=torch.float64), torch.full((3, 2), 7.).T,
                      weir.Tensor((2, 3), values=torch.full((2, 3), 7.))):
            into = {"w": np.empty((2, 3), np.float32), "b": np.empty((), np.float32)}
            with weir.Client(JOB, {"w": given, "b": torch.tensor(2.)}, 8) as c:
                c.pull(0, into).result()
            np.testing.assert_array_equal(into["w"], np.full((2, 3), 7))
            self.assertEqual(into["b"], 2)
        for given in (torch.nn.Parameter(torch.zeros(3)), weir.Tensor((3,), values=torch.nn.Parameter(torch.zeros(3)))):
            with self.assertRaisesRegex(weir.ConfigError, "^initial values: w must be float32 in the host's memory.*detach"):
                weir.Client(JOB, {"w": given}, 8)

    def test_keys(self):
        job = {**JOB, "tables": [{"name": "users", "dim": 2, "optimizer": {"type": "sgd", "learning_rate": 1}}]}
        values = torch.empty(2, 2)
        with weir.Client(job, TENSORS, 8) as c:
            c.pull_rows(0, {"users": (torch.tensor([5, -5]), values)}).result()
            with self.assertRaisesRegex(weir.ConfigError, "^pull: table users: keys must be int64 or uint64 in the host's memory"):
                c.pull_rows(0, {"users": (torch.zeros(2, dtype=torch.bfloat16), values)})
            with self.assertRaisesRegex(weir.ConfigError, "^pull: table users: values must be float32 in the host's memory"):
                c.pull_rows(0, {"users": (torch.tensor([5, -5]), values.bfloat16())})



if __name__ == "__main__":
    unittest.main()
