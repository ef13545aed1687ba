#!/usr/bin/python3
"""Parameters and buffers of a PyTorch model that lie in the same memory."""
import unittest

import support
import torch
import train
import weir
import weir.torch
from torch_jobs import BATCH, job


def model_of(**tensors):
    """A model with these parameters and buffers, beside a layer."""
    model = torch.nn.Module()
    model.layer = torch.nn.Linear(2, 2)
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.nn.Parameter):
            model.register_parameter(name, tensor)
        else:
            model.register_buffer(name, tensor)
    return model


def parameter(tensor, trained=True):
    return torch.nn.Parameter(tensor, requires_grad=trained)


class SharedMemory(unittest.TestCase):
    def test_what_is_refused_names_both(self):
        w, flat = torch.randn(4, 4), torch.randn(20)
        cases = {
            "the same": (parameter(w), parameter(w)),
            "transposed": (parameter(w), parameter(w.t())),
            "another shape": (parameter(w), parameter(w.view(2, 8))),
            "a row": (parameter(w), parameter(w[3])),
            "one value": (parameter(flat[:10]), parameter(flat[9:])),
            "one value of columns": (parameter(w[:, :2]), parameter(w[:, 1:3])),
            "a parameter over a buffer": (w, parameter(w[1])),
            "a buffer over a parameter": (parameter(w), w[1].detach()),
            "another type": (parameter(w), parameter(w.view(torch.int16).view(torch.bfloat16))),
            "a frozen one": (parameter(w), parameter(w, trained=False)),
            "two buffers": (w[:2], w[1:]),
            "a count within": (parameter(flat), flat.view(torch.int32)[3:4])}
        for name, (first, second) in cases.items():
            for a, b in ((first, second), (second, first)):
                with self.subTest(name), self.assertRaises(weir.ConfigError) as caught:
                    weir.torch.Optimizer(model_of(other=parameter(torch.randn(4)), a=a, b=b), job(), train.Examples())
                self.assertRegex(str(caught.exception), "^(a and b|b and a) are two tensors in the same memory, .*the same Parameter object")
        with support.folder() as folder, self.assertRaisesRegex(weir.ConfigError, "are two tensors in the same memory"):
            weir.torch.save_weights(model_of(a=parameter(w), b=parameter(w)), folder)

    def test_a_tensor_over_itself(self):
        windows = torch.randn(9).as_strided((4, 3), (2, 1))
        for name, tensor in {"expanded": torch.zeros(1).expand(4), "windows": windows, "rows": torch.zeros(3).expand(2, 3)}.items():
            for kind in (parameter, lambda t: t):
                with self.subTest(name), self.assertRaisesRegex(weir.ConfigError, f"^a has several of its {tensor.numel()} values in one place"):
                    weir.torch.Optimizer(model_of(a=kind(tensor)), job(), train.Examples())

    def test_what_happens_after_the_optimizer_was_made(self):
        for within in (False, True):
            model = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
            opt = weir.torch.Optimizer(model, job(train={"examples": 4 * BATCH}), train.Examples())
            if not within:
                model[2].weight.data = model[1].weight.data
            with self.subTest(within=within), self.assertRaisesRegex(weir.ConfigError, "^1.weight and 2.weight are two tensors in the same"):
                for n, (x, *_) in enumerate(opt.loader()):
                    self.assertTrue(within and n == 0)
                    opt.zero_grad()
                    model(x).sum().backward()
                    opt.step()
                    model[2].weight.data = model[1].weight.data

    def test_what_is_apart_is_trained(self):
        """One memory, in which each has its own places; a Parameter object in two layers; and frozen ones over one another."""
        w, flat, frozen = torch.randn(4, 4), torch.randn(20), torch.randn(3)
        tied = parameter(torch.randn(3))
        model = model_of(left=parameter(w[:, :2]), right=parameter(w[:, 2:]), a=parameter(flat[:10].view(2, 5)), b=parameter(flat[10:]),
                         even=parameter(torch.randn(8)[::2]), tied=tied, again=tied, frozen=parameter(frozen, False),
                         thawed=parameter(frozen, False), one=parameter(torch.zeros(1).expand(1, 1)), none=torch.zeros(0))
        # A permuted tensor and one with gaps are none over themselves.
        model.register_parameter("turned", parameter(torch.randn(2, 3, 4).permute(2, 0, 1)))
        before = {name: value.clone() for name, value in model.named_parameters()}
        opt = weir.torch.Optimizer(model, job(train={"examples": 4 * BATCH}, optimizer={"type": "sgd", "learning_rate": 0.5},
                                              consistency={"mode": "sync"}), train.Examples())
        for _ in opt.loader():
            opt.zero_grad()
            sum(p.sum() for p in model.parameters()).backward()
            opt.step()
        for name, value in model.named_parameters():
            moved = torch.zeros_like(value) if name in ("frozen", "thawed") else torch.full_like(value, -2)
            torch.testing.assert_close(value.detach(), before[name].detach() + moved)
        self.assertIs(model.tied, model.again)


if __name__ == "__main__":
    unittest.main()
