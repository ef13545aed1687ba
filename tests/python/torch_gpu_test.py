#!/usr/bin/python3
"""weir.torch with a model on a GPU. Skipped where PyTorch finds none."""
import unittest

import support  # pylint: disable=unused-import
import torch
import torch.nn.functional as F
import train
import weir
import weir.torch
from torch_jobs import BATCH, RATE, job

GPU = torch.device("cuda", 0) if torch.cuda.is_available() else None


class Rows(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.bag = weir.torch.EmbeddingBag("words", mode="mean")
        self.out = torch.nn.Linear(4, train.CLASSES)

    def forward(self, x):
        return self.out(self.bag((x * 3).long()))


def backward_once(opt, model, x, y):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()


class Gpu(unittest.TestCase):
    def setUp(self):
        if GPU is None:
            self.skipTest("PyTorch finds no GPU")

    def train(self, model, device, backward=backward_once, overlap=False, loader=None, compiled=lambda model: model, **fields):
        """The weights that the job leaves in the model, on the CPU."""
        model.to(device)
        fields = {"train": {"examples": 6 * BATCH}, "consistency": {"mode": "sync"}, "wire": {"chunk_kib": 256}, **fields}
        opt = weir.torch.Optimizer(compiled(model), job(**fields), train.Examples(), overlap=overlap, servers=2)
        places = [p.data_ptr() for p in model.parameters()]
        for x, y, *_ in opt.loader(**loader or {}):
            backward(opt, model, x.to(device), y.to(device))
            opt.step()
        self.assertEqual([p.data_ptr() for p in model.parameters()], places, "the parameters have moved")
        return {name: value.cpu() for name, value in model.state_dict().items()}

    def check(self, found, expected, **tolerance):
        for name, value in expected.items():
            if tolerance:
                torch.testing.assert_close(found[name], value, **tolerance, msg=lambda text, name=name: f"{name}: {text}")
            else:
                self.assertTrue(torch.equal(found[name], value), f"{name} has other bits")

    def test_as_on_the_cpu(self):
        """But for rounding; with running statistics and their counts."""
        expected = self.train(train.make_model(dropout=0, norm=True), "cpu")
        found = self.train(train.make_model(dropout=0, norm=True), GPU)
        self.assertGreater((expected["0.weight"] - train.make_model(dropout=0, norm=True).state_dict()["0.weight"]).abs().max(), 1e-3)
        self.check(found, expected, rtol=1e-4, atol=1e-5)
        self.check(self.train(train.make_model(dropout=0, norm=True), GPU), found)

    def test_buffers_that_are_not_batch_norms(self):
        expected = self.train(train.make_model(dropout=0, own=True), "cpu")
        self.assertGreater(expected["4.mean"].abs().max(), 1e-3)
        self.check(self.train(train.make_model(dropout=0, own=True), GPU), expected, rtol=1e-4, atol=1e-5)

    def test_what_the_program_changes(self):
        """Also where torch does not count it; and values that are put back."""
        def swap(opt, model, x, y):
            backward_once(opt, model, x, y)
            before = {name: value.clone() for name, value in model.state_dict().items()}
            model.load_state_dict({name: value + 1 for name, value in before.items()})
            model.load_state_dict(before)

        self.check(self.train(train.make_model(), GPU, swap), self.train(train.make_model(), GPU))
        for unseen in (False, True):
            def clamp(opt, model, x, y, unseen=unseen):
                backward_once(opt, model, x, y)
                for p in model.parameters():
                    (p.data if unseen else p.detach()).clamp_(-0.01, 0.01)

            with self.subTest(unseen=unseen), self.assertRaisesRegex(weir.ConfigError, r"^\d.[a-z]+ was changed in the loop"):
                self.train(train.make_model(), GPU, clamp)

    def test_batches_that_are_pinned(self):
        expected = self.train(train.make_model(), GPU)
        self.check(self.train(train.make_model(), GPU, loader={"num_workers": 1, "pin_memory": True}), expected)

    def test_dropout_follows_from_the_seed(self):
        first = self.train(train.make_model(), GPU)
        torch.cuda.manual_seed(1234)
        self.check(self.train(train.make_model(), GPU), first)

    def test_gradients_that_travel_during_backward(self):
        expected = self.train(train.make_model(hidden=train.WIDE), GPU)
        self.check(self.train(train.make_model(hidden=train.WIDE), GPU, overlap=True), expected)

    def test_several_backwards_and_a_snapshot_between(self):
        """The snapshot's weights travel when gradients do."""
        def halves(opt, model, x, y):
            opt.zero_grad()
            for n, (a, b) in enumerate(zip(x.chunk(2), y.chunk(2))):
                loss = F.cross_entropy(model(a), b) / 2
                if n == 0:
                    with opt.accumulate():
                        loss.backward()
                else:
                    loss.backward()
            with opt.snapshot():
                pass

        kind = {"dropout": 0, "hidden": train.WIDE}
        expected = self.train(train.make_model(**kind), GPU, halves)
        self.check(self.train(train.make_model(**kind), GPU, halves, overlap=True), expected)

    def test_a_gradient_that_changes_on_its_way(self):
        def clip(opt, model, x, y):
            backward_once(opt, model, x, y)
            model[0].weight.grad.mul_(0.5)

        with self.assertRaisesRegex(weir.Error, "the gradient of 0.weight was changed after backward"):
            self.train(train.make_model(hidden=train.WIDE), GPU, clip, overlap=True)

    def test_bfloat16(self):
        """As parameters, and of autocast."""
        def autocast(opt, model, x, y):
            opt.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            loss.backward()

        def rounded(opt, model, x, y):
            backward_once(opt, model, x.bfloat16(), y)

        expected = self.train(train.make_model(dropout=0), GPU)
        self.check(self.train(train.make_model(dropout=0), GPU, autocast), expected, rtol=0.05, atol=0.02)
        found = self.train(train.make_model(dropout=0).bfloat16(), GPU, rounded)
        self.assertEqual(found["0.weight"].dtype, torch.bfloat16)
        self.check({name: value.float() for name, value in found.items()}, expected, rtol=0.05, atol=0.02)

    def test_a_compiled_model(self):
        if not hasattr(torch, "compile"):
            self.skipTest("this PyTorch has no torch.compile()")
        for overlap in (False, True):
            with self.subTest(overlap=overlap):
                kind = {"dropout": 0, "hidden": train.WIDE}
                compiled = []

                def backward(opt, model, x, y):
                    backward_once(opt, compiled[0], x, y)

                def compile_model(model):
                    compiled.append(torch.compile(model))
                    return compiled[0]

                expected = self.train(train.make_model(**kind), GPU)
                found = self.train(train.make_model(**kind), GPU, backward, overlap=overlap, compiled=compile_model)
                self.check(found, expected, rtol=1e-3, atol=1e-4)

    def test_clip_norm_and_the_modes(self):
        begin = train.make_model(dropout=0).state_dict()
        for consistency in ({"mode": "sync"}, {"mode": "bounded", "staleness": 2}, {"mode": "async"}):
            with self.subTest(consistency=consistency):
                fields = {"train": {"examples": 6 * BATCH, "clip_norm": 0.1}, "consistency": consistency}
                expected = self.train(train.make_model(dropout=0), "cpu", **fields)
                self.assertGreater(max((expected[name] - begin[name]).abs().max() for name in begin), 0.01)
                self.check(self.train(train.make_model(dropout=0), GPU, **fields), expected, rtol=1e-3, atol=1e-4)

    def test_prefetch(self):
        """Weights of the next step come while this one is computed. The job ends, and has learnt."""
        fields = {"consistency": {"mode": "bounded", "staleness": 2, "prefetch": True}, "train": {"epochs": 10}}
        model = train.make_model(dropout=0)
        model.load_state_dict(self.train(model, GPU, **fields))
        self.assertGreater(train.measure(model.to("cpu"), train.Examples())["accuracy"], 0.8)

    def test_keys_on_the_gpu(self):
        tables = [{"name": "words", "dim": 4, "init": {"type": "normal", "value": 0.5},
                   "optimizer": {"type": "sgd", "learning_rate": RATE}}]
        self.check(self.train(Rows(), GPU, tables=tables), self.train(Rows(), "cpu", tables=tables), rtol=1e-4, atol=1e-5)

    def test_one_device(self):
        model = train.make_model()
        model[3].to(GPU)
        with self.assertRaisesRegex(weir.ConfigError, r"3.weight is on cuda:0, and 0.weight on cpu; a worker has its model on one"):
            weir.torch.Optimizer(model, job(), train.Examples())

    def test_a_model_that_is_moved(self):
        model = train.make_model()
        opt = weir.torch.Optimizer(model, job(), train.Examples())
        model.to(GPU)
        with self.assertRaisesRegex(weir.ConfigError, "0.weight is not as it was when the optimizer was made: it is on cuda:0 now, and was on cpu"):
            opt.loader()


if __name__ == "__main__":
    unittest.main()
