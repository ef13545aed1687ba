#!/usr/bin/python3
"""Gradients of weir.torch that travel during backward."""
import unittest

import support
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
import train
import weir
import weir.torch
from torch_jobs import BATCH, RATE, job


class Overlap(unittest.TestCase):
    """overlap=True: the same bits, or an error that says what to do."""

    def train(self, backward, overlap=True, compiled=lambda model: model, **fields):
        """The weights after a few steps, in which backward(opt, model, x, y) makes the gradients."""
        plain = train.make_model(dropout=0, hidden=train.WIDE)
        model = compiled(plain)
        fields = {"train": {"examples": 4 * BATCH}, "consistency": {"mode": "sync"}, "wire": {"chunk_kib": 256}, **fields}
        # With several servers it is the client that checks values, when they leave.
        opt = weir.torch.Optimizer(model, job(**fields), train.Examples(), overlap=overlap, servers=2)
        for x, y, *_ in opt.loader():
            opt.zero_grad(set_to_none=True)
            self.assertTrue(opt.client.gains_from_gate)
            backward(opt, model, x, y)
            opt.step()
            self.assertEqual([*opt.client.model.names], [*plain.state_dict()])
        return plain.state_dict()

    def check_same(self, backward, **fields):
        expected, found = self.train(backward, overlap=False, **fields), self.train(backward, **fields)
        for name, value in expected.items():
            self.assertTrue(torch.equal(found[name], value), f"{name} has other bits")

    def test_bytes_leave_during_backward(self):
        """A value of the last layer's gradient that is not finite ends the job while the first layer's is computed."""
        def backward(opt, model, x, y):
            hidden = model[0](x)

            def wait(_):
                # There is no other work before this push has ended.
                opt.client.next_work(timeout=support.LIMIT_SECONDS)
            hidden.register_hook(wait)
            (F.cross_entropy(model[1:](hidden), y) * torch.inf).backward()

        with self.assertRaisesRegex(weir.Diverged, "the gradient of 3.weight"):
            self.train(backward)

    def test_several_backwards(self):
        def halves(x, y):
            return zip(x.chunk(2), y.chunk(2))

        def last_one_outside(opt, model, x, y):
            (first, second) = (F.cross_entropy(model(a), b) / 2 for a, b in halves(x, y))
            with opt.accumulate():
                first.backward()
            second.backward()

        def all_inside(opt, model, x, y):
            with opt.accumulate():
                for a, b in halves(x, y):
                    (F.cross_entropy(model(a), b) / 2).backward()

        for backward in (last_one_outside, all_inside):
            with self.subTest(backward.__name__):
                self.check_same(backward)

    def test_parameters_apart(self):
        """Each has a backward() of its own, and one is only in the first batch's loss; later its gradient is zeros."""
        def backward(opt, model, x, y):
            (model[0].weight.sum() * x[0, 0]).backward()
            if opt._step.work.clock == 0:
                model[0].bias.sum().backward()
            F.cross_entropy(model[3](torch.ones(len(x), train.WIDE)), y).backward()

        sgd = {"optimizer": {"type": "sgd", "learning_rate": RATE}}
        self.check_same(backward, **sgd)
        before = train.make_model(dropout=0, hidden=train.WIDE)[0].bias.detach()
        self.assertTrue(torch.equal(self.train(backward, **sgd)["0.bias"], before - torch.tensor(RATE)))

    def test_clip_norm(self):
        self.check_same(lambda opt, model, x, y: F.cross_entropy(model(x), y).backward(),
                        train={"examples": 4 * BATCH, "clip_norm": 0.05})

    def test_a_weight(self):
        """It comes when the gradients have left."""
        opt = weir.torch.Optimizer(train.make_model(), job(), train.Examples(), overlap=True)
        with self.assertRaisesRegex(weir.ConfigError, r"step\(weight=\) is not for overlap=True"):
            for _ in opt.loader():
                opt.step(weight=3)

    def test_checkpointed_layers(self):
        def backward(opt, model, x, y):
            hidden = torch.utils.checkpoint.checkpoint(model[0], x.requires_grad_(), use_reentrant=True)
            F.cross_entropy(model[1:](hidden), y).backward()

        self.check_same(backward)

    def test_a_compiled_model(self):
        """The job's tensors have the names of the model that was compiled, and gradients leave as its backward makes them."""
        def backward(opt, model, x, y):
            F.cross_entropy(model(x), y).backward()

        class Compiled(torch.nn.Module):
            """As torch.compile() wraps a model."""

            def __init__(self, model):
                super().__init__()
                self._orig_mod = model

            def forward(self, x):
                return self._orig_mod(x)

        wraps = [Compiled]
        if hasattr(torch, "compile"):
            wraps.append(lambda model: torch.compile(model, backend="aot_eager"))
        else:
            print(f"SKIPPED: torch.compile() itself: PyTorch {torch.__version__} has none, 2.0 or newer is needed")
        for compiled in wraps:
            self.check_same(backward, compiled=compiled)

    def test_a_gradient_that_is_changed(self):
        def clip(opt, model):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

        def scale(opt, model):
            model[3].bias.grad *= 2

        def replace(opt, model):
            model[3].bias.grad = model[3].bias.grad * 2

        def zero(opt, model):
            opt.zero_grad(set_to_none=True)

        for change in (clip, scale, replace, zero):
            def backward(opt, model, x, y):
                F.cross_entropy(model(x), y).backward()
                change(opt, model)
            with self.subTest(change.__name__):
                with self.assertRaisesRegex(weir.Error, r"was changed after backward\(\).*train.clip_norm.*overlap=False"):
                    self.train(backward)
                self.train(backward, overlap=False)

    def test_a_second_backward(self):
        def backward(opt, model, x, y):
            loss = F.cross_entropy(model(x), y)
            loss.backward(retain_graph=True)
            loss.backward()

        with self.assertRaisesRegex(weir.Error, r"second gradient of .*opt.accumulate\(\).*overlap=False"):
            self.train(backward)
        self.train(backward, overlap=False)

    def test_the_model_is_left_as_it_was(self):
        """After the loop, and when the loop is left in the middle of a batch, backward() is the model's own again."""
        for leave in (False, True):
            model = train.make_model()
            opt = weir.torch.Optimizer(model, job(), train.Examples(), overlap=True)
            for x, y, *_ in opt.loader():
                opt.zero_grad()
                F.cross_entropy(model(x), y).backward()
                if leave:
                    break
                opt.step()
            for _ in range(2):
                model(x).sum().backward()


if __name__ == "__main__":
    unittest.main()
