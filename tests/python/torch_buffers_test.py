#!/usr/bin/python3
"""The buffers of a PyTorch model: which are the job's, what becomes of them, and what happens when others change."""
import pathlib
import unittest

import support
import torch
import torch.nn.functional as F
import train
import weir
import weir.torch
from torch_jobs import BATCH, Run, job, serial_run

ASYNC = {"mode": "async"}


class Held(torch.nn.Module):
    """A model with one more tensor. change(module) is called in each forward of training."""

    def __init__(self, tensor, change=None, persistent=True, frozen=False):
        super().__init__()
        self.layer = torch.nn.Linear(train.INPUTS, train.CLASSES)
        if frozen:
            self.held = torch.nn.Parameter(tensor, requires_grad=False)
        else:
            self.register_buffer("held", tensor, persistent)
        self.change = change

    def forward(self, x):
        if self.training and self.change is not None:
            with torch.no_grad():
                self.change(self)
        return self.layer(x)


def loop(model, change=lambda batch: None, after=lambda batch: None, buffers=None, **fields):
    """Trains the model. change, after: are called with the batch's number, before and after step(). Returns the optimizer."""
    opt = weir.torch.Optimizer(model, job(**{"train": {"examples": 6 * BATCH}, "consistency": ASYNC, **fields}), train.Examples(),
                               buffers=buffers)
    for n, (x, y, *_) in enumerate(opt.loader()):
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        change(n)
        opt.step()
        after(n)
    return opt


class OfTheJob(unittest.TestCase):
    """Buffers that travel with the weights."""

    def test_the_same_bits_for_any_number_of_workers(self):
        """In sync: those that forward changes in place, those that it replaces, and spectral_norm's. An evaluator has them, too."""
        for flags in (["--workers=1"], ["--workers=3", "--ps=2", "--evaluator"]):
            with self.subTest(flags=flags):
                run = Run(self, {"own": True})
                # The job waits for the evaluator, which may start late.
                done = support.run(run.up(*flags, program=["--hold_at=2"] if "--evaluator" in flags else []))
                run.check(done, models=1 if len(flags) == 1 else (2, 3))
        expected = serial_run(own=True)
        self.assertTrue({"0.weight_u", "4.mean", "4.square"} <= set(expected))
        for name, value in torch.load(run.folder / "read.pt").items():
            self.assertTrue(torch.equal(value, expected[name]), name)

    def test_a_job_that_is_started_again_has_them(self):
        """From the checkpoint of its end, and from one within it; exported, too."""
        sync = {"consistency": {"mode": "sync"}}
        for epochs in (1, 2):
            with self.subTest(epochs=epochs), support.folder() as folder:
                saved = {**sync, "checkpoint": {"directory": f"{folder}/saved"}}
                model = train.make_model(own=True)
                loop(model, train={"epochs": 1}, **saved)
                again = train.make_model(own=True)
                loop(again, train={"epochs": epochs}, **saved)
                if epochs == 1:
                    for name, value in model.state_dict().items():
                        self.assertTrue(torch.equal(again.state_dict()[name], value), name)
                    done = support.run([support.ROOT / "cli/weir", "export", f"{folder}/saved", f"{folder}/model.safetensors"])
                    self.assertEqual(done.returncode, 0, done.stderr)
                    text = pathlib.Path(folder, "model.safetensors").read_bytes()
                    self.assertIn(model[4].mean.numpy().tobytes(), text)
                    self.assertIn(b'"4.square"', text)
                else:
                    whole = train.make_model(own=True)
                    loop(whole, train={"epochs": 2}, **sync)
                    for name, value in whole.state_dict().items():
                        self.assertTrue(torch.equal(again.state_dict()[name], value), name)

    def test_which_they_are(self):
        class Inner(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("mean", torch.zeros(3))
                self.register_buffer("cache", torch.zeros(3), persistent=False)

        model = torch.nn.Module()
        model.layer, model.inner, model.norm = torch.nn.Linear(2, 2), Inner(), torch.nn.BatchNorm1d(2)
        model.frozen = torch.nn.Linear(2, 2).requires_grad_(False)
        for name, tensor in {"halves": torch.zeros(2, dtype=torch.float16), "brain": torch.zeros(2, dtype=torch.bfloat16),
                             "doubles": torch.zeros(2, dtype=torch.float64), "count": torch.tensor(0), "flag": torch.tensor(True),
                             "limit": torch.tensor(float("-inf")), "most": torch.zeros(65_536), "mask": torch.zeros(65_537),
                             "none": torch.zeros(0), "places": torch.zeros(3, 3)}.items():
            model.register_buffer(name, tensor)
        norm = ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]

        def of_job(buffers=None):
            return list(weir.torch.weights.ModelWeights(model, buffers).buffers)

        self.assertEqual(of_job(), ["halves", "brain", "most", "places", "inner.mean", *norm])
        self.assertEqual(of_job({"norm.*": "own", "most": "own"}), ["halves", "brain", "places", "inner.mean"])
        self.assertEqual(of_job({"inner.mean": "own", "inner.*": "job", "mask": "job", "count": "job", "frozen.bias": "job", "[a-b]*": "own"}),
                         ["frozen.bias", "halves", "count", "most", "mask", "places", "inner.cache", *norm])
        cases = [({"places": "max"}, r"buffers\['places'\] must be \"job\" or \"own\", got 'max': the servers take the mean"),
                 ({"layer.*": "own"}, r"buffers\['layer.\*'\] fits none of the model's buffers and frozen parameters: frozen.weight"),
                 ({"doubles": "job"}, "doubles cannot be the job's: it is torch.float64, and the servers have float32 values"),
                 ({"*": "job"}, "doubles cannot be the job's"),
                 ({"limit": "job"}, "limit cannot be the job's: it had values that are not finite"),
                 ({"none": "job"}, "none cannot be the job's: it has no values")]
        for buffers, text in cases:
            with self.subTest(buffers=buffers), self.assertRaisesRegex(weir.ConfigError, text):
                of_job(buffers)

    def test_values_are_rounded_to_the_types_of_buffers(self):
        for dtype in (torch.bfloat16, torch.float16):
            with self.subTest(dtype=dtype):
                model = Held(torch.full((3,), 0.1, dtype=dtype), lambda m: m.held.mul_(1.1))
                expected = model.held.clone()
                for _ in range(6):
                    expected.mul_(1.1)
                loop(model)
                self.assertEqual(model.held.dtype, dtype)
                self.assertTrue(torch.equal(model.held, expected), (model.held, expected))

    def test_those_that_the_program_chooses(self):
        """A teacher that follows the trained layer, a count, a large buffer, and one that is not in state_dict()."""
        def follow(m):
            m.held.data = 0.5 * m.held.data + 0.5 * m.layer.bias.data

        def count(m):
            m.held += 2

        def last(m):
            m.held[-1] += 1

        cases = [("teacher", dict(tensor=torch.zeros(3), change=follow, frozen=True), None),
                 ("count", dict(tensor=torch.tensor(0), change=count), torch.tensor(12)),
                 ("large", dict(tensor=torch.zeros(65_537), change=last), torch.tensor([0.] * 65_536 + [6])),
                 ("passing", dict(tensor=torch.zeros(2), change=last, persistent=False), torch.tensor([0., 6]))]
        for name, kind, expected in cases:
            with self.subTest(name), support.folder() as folder:
                saved = {"checkpoint": {"directory": f"{folder}/saved"}}
                model, again = Held(**kind), Held(**{**kind, "tensor": kind["tensor"].clone()})
                loop(model, buffers={"held": "job"}, **saved)
                if expected is not None:
                    self.assertTrue(torch.equal(model.held, expected), model.held)
                loop(again, buffers={"held": "job"}, **saved)
                self.assertTrue(torch.equal(model.held, again.held))
                self.assertEqual(model.held.dtype, kind["tensor"].dtype)

    def test_own_ones_may_change_and_stay_here(self):
        def replace(m):
            m.held = m.held + 1

        for change in (lambda m: m.held.add_(1), replace):
            model = Held(torch.zeros(2), change)
            loop(model, buffers={"h*": "own"})
            self.assertTrue(torch.equal(model.held, torch.full((2,), 6.)))

    def test_initial_values(self):
        """save_weights() and init_from, also through a file of PyTorch's own."""
        with support.folder() as folder:
            model = Held(torch.tensor([1., 2.]), lambda m: m.held.add_(1))
            weir.torch.save_weights(model, f"{folder}/weights")
            again = Held(torch.zeros(2))
            loop(again, checkpoint={"init_from": f"{folder}/weights"})
            self.assertTrue(torch.equal(again.held, torch.tensor([1., 2.])))
            with self.assertRaisesRegex(weir.ConfigError, "held"):
                loop(Held(torch.zeros(2)), buffers={"held": "own"}, checkpoint={"init_from": f"{folder}/weights"})

    def test_snapshots_have_them(self):
        model, seen = Held(torch.zeros(2), lambda m: setattr(m, "held", m.held + 1)), []

        def look(_):
            with opt.snapshot():
                seen.append(float(model.held[0]))
                for _ in range(2):
                    model(torch.zeros(1, train.INPUTS))  # in training mode, which counts only until the end of the snapshot

        opt = weir.torch.Optimizer(model, job(train={"examples": 3 * BATCH}, consistency=ASYNC), train.Examples())
        for n, (x, y, *_) in enumerate(opt.loader()):
            look(n)
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            look(n)
            opt.step()
        self.assertEqual(seen, [0, 0, 1, 1, 2, 2])
        self.assertEqual(float(model.held[0]), 3)


class Constants(unittest.TestCase):
    """Buffers and frozen parameters that are not the job's."""

    def refused(self, model, text, **more):
        with self.assertRaisesRegex(weir.ConfigError, f"^held was changed in training.*{text}") as caught:
            loop(model, **more)
        return str(caught.exception)

    def test_a_change_is_refused_with_what_to_do(self):
        def add(m):
            m.held += 1

        def replace(m):
            m.held = m.held + 1

        def other_memory(m):
            m.held.data = m.held.data + 1

        def unseen_by_torch(m):
            m.held.data.add_(1)

        both = 'give weir.torch.Optimizer buffers={\'held\': "job"}, .* or "own" where each process'
        own = 'keep such values in a buffer of float32, or give .* "own"'
        numbers = torch.arange(6.)
        cases = [(dict(tensor=torch.tensor(0)), "it is torch.int64", both),
                 (dict(tensor=torch.tensor([0, 1])), "it is torch.int64", own),
                 (dict(tensor=torch.tensor(0, dtype=torch.uint8)), "it is torch.uint8", own),
                 (dict(tensor=numbers.double()), "it is torch.float64", own),
                 (dict(tensor=torch.tensor([float("inf"), 1])), "it had values that are not finite", own),
                 (dict(tensor=torch.zeros(65_537)), "it has more than 65,536 values", both),
                 (dict(tensor=numbers, persistent=False), r"it is not in the model's state_dict\(\)", both),
                 (dict(tensor=numbers, frozen=True), "it is a parameter that requires no gradient", both)]
        for kind, reason, remedy in cases:
            for change in (add, replace, other_memory, unseen_by_torch):
                if kind.get("frozen") and change is replace:
                    continue
                with self.subTest(reason, change=change.__name__):
                    self.refused(Held(**{**kind, "tensor": kind["tensor"].clone()}, change=change), f"{reason}.*{remedy}")
        model = Held(torch.tensor(False), lambda m: m.held.fill_(True))
        self.refused(model, f"it is torch.bool.*{own}")

    def test_a_part_of_a_large_one(self):
        """A queue of keys, of which each forward writes some."""
        def write(m):
            m.held[40_000:40_010] += 1

        self.refused(Held(torch.zeros(50_000, 2), write), "more than 65,536 values")

    def test_a_change_after_step(self):
        for unseen in (False, True):
            model = Held(torch.zeros(4), frozen=True)
            held = model.held.data if unseen else model.held
            self.refused(model, "requires no gradient", after=lambda n, held=held: n != 2 or held.add_(1))

    def test_values_that_are_put_back(self):
        """As where the weights of an average are in the model for a while."""
        model = Held(torch.arange(5), None)
        model.frozen = torch.nn.Linear(2, 2).requires_grad_(False)
        kept = {name: value.clone() for name, value in model.state_dict().items()}

        def swap(_):
            now = {name: value.clone() for name, value in model.state_dict().items()}
            model.load_state_dict({name: value + 1 for name, value in kept.items()})
            model.load_state_dict(now)

        loop(model, swap, swap)

    def test_a_cache_that_grows(self):
        """A table that is not in state_dict() is made anew for longer inputs, and later ones are made at all."""
        def grow(m):
            m.held = torch.arange(len(m.held) + 1.)
            if not hasattr(m, "other"):
                m.register_buffer("other", torch.zeros(2), persistent=False)

        model = Held(torch.zeros(1), grow, persistent=False)
        loop(model)
        self.assertEqual(len(model.held), 7)

    def test_state_that_appears_in_the_loop(self):
        def register(m):
            if not hasattr(m, "mean"):
                m.register_buffer("mean", torch.zeros(2))

        with self.assertRaisesRegex(weir.ConfigError, "^mean is not as it was when the optimizer was made: it was added since"):
            loop(Held(torch.zeros(1), register))


class ChangedByTheProgram(unittest.TestCase):
    """What the program itself does to the buffers of the job."""

    def test_until_step_it_counts(self):
        model = train.make_model(norm=True)
        loop(model, lambda n: n != 3 or model[4].reset_running_stats())
        self.assertEqual(model[4].num_batches_tracked, 2)
        self.assertEqual(model[5].num_batches_tracked, 6)

    def test_after_step_it_is_refused(self):
        def forward(_):
            with torch.no_grad():
                model(train.Examples().x)

        def replace(_):
            model[4].running_mean = torch.ones(3)

        for change, name in ((lambda n: model[4].reset_running_stats(), "running_mean"), (forward, "running_mean"),
                             (replace, "running_mean"), (lambda n: model[4].num_batches_tracked.add_(1), "num_batches_tracked"),
                             (lambda n: model[4].running_mean.data.add_(1), "running_mean")):
            model = train.make_model(norm=True)
            with self.subTest(name), self.assertRaisesRegex(weir.ConfigError, f"^4.{name} was changed after step"):
                loop(model, after=lambda n: n < 1 or change(n))
        model = train.make_model(norm=True)

        def evaluate(_):
            model.eval()
            forward(_)
            model.train()

        loop(model, after=evaluate)

    def test_others_in_their_places(self):
        """A tensor of the same kind has the new values; any other is refused."""
        for within in (None, 0, 2):
            model = train.make_model(norm=True)
            opt = weir.torch.Optimizer(model, job(consistency=ASYNC, train={"examples": 3 * BATCH}), train.Examples())
            if within is None:
                model[4].running_mean = torch.full((3,), 5.)
            for batch, _ in enumerate(opt.loader()):
                if batch == within:
                    model[4].running_mean = torch.full((3,), 5.)
                opt.step()
            self.assertTrue(torch.equal(model[4].running_mean, torch.full((3,), 5.)))
        changes = {"it is torch.bfloat16 now": lambda m: m[4].bfloat16(), "it was removed": lambda m: setattr(m[4], "running_mean", None),
                   r"it is of shape \(4,\) now": lambda m: setattr(m[4], "running_mean", torch.zeros(4)),
                   "its module was replaced": lambda m: m.__setitem__(4, torch.nn.BatchNorm1d(3, affine=False))}
        for text, change in changes.items():
            for within in (None, 0, 2):
                with self.subTest(text, within=within):
                    model = train.make_model(norm=True)
                    model[4].weight.requires_grad_(False)
                    model[4].bias.requires_grad_(False)
                    opt = weir.torch.Optimizer(model, job(), train.Examples())
                    if within is None:
                        change(model)
                    # Modules are looked at in each eighth batch.
                    late = 8 if within and "module" in text else 0
                    with self.assertRaisesRegex(weir.ConfigError, f"^4.[a-z_]* is not as it was when the optimizer was made: {text}"):
                        for batch, _ in enumerate(opt.loader()):
                            if batch == within:
                                change(model)
                            opt.step()
                            self.assertLess(batch, (within or 0) + late)

    def test_a_lazy_module(self):
        for lazy in (torch.nn.LazyLinear(3), torch.nn.LazyBatchNorm1d()):
            model = torch.nn.Sequential(torch.nn.Linear(6, 3), lazy)
            with self.assertRaisesRegex(weir.ConfigError, "^1.[a-z]+ has no shape yet, since its module is lazy; call the model once"):
                weir.torch.Optimizer(model, job(), train.Examples())
            model(torch.zeros(2, 6))
            weir.torch.Optimizer(model, job(), train.Examples())


if __name__ == "__main__":
    unittest.main()
