#!/usr/bin/python3
"""What a program changes in the loop although it is the servers': weights, types, and which modules and parameters there are."""
import unittest

import support  # pylint: disable=unused-import
import torch
import torch.nn.functional as F
import train
import weir
import weir.torch
from torch_jobs import BATCH, job

STEPS = 8


def loop(model, before=lambda batch, opt: None, after=lambda batch, opt: None, data=None, **fields):
    """Trains the model; before, after: are called with each batch's number, before and after step(). Returns the batches done."""
    done = 0
    opt = weir.torch.Optimizer(model, job(**{"train": {"examples": STEPS * BATCH}, "consistency": {"mode": "sync"}, **fields}),
                               data or train.Examples())
    for n, (x, y, *_) in enumerate(opt.loader()):
        opt.zero_grad()
        F.cross_entropy(model(x.to(next(model.parameters()).dtype)), y).backward()
        before(n, opt)
        opt.step()
        after(n, opt)
        done += 1
    return done


class Weights(unittest.TestCase):
    def refused(self, text, model, **calls):
        """Returns how many batches were done before."""
        done = 0

        def count(batch, opt, then=calls.pop("after", lambda batch, opt: None)):
            nonlocal done
            done += 1
            then(batch, opt)

        with self.assertRaisesRegex(weir.ConfigError, text) as caught:
            loop(model, after=count, **calls)
        self.assertNotIn("\n", str(caught.exception))
        return done

    def test_a_change_is_refused_in_its_batch_with_what_to_do(self):
        def clamp(model):
            with torch.no_grad():
                model[3].weight.clamp_(-0.01, 0.01)

        def clamp_all_unseen_by_torch(model):
            for p in model.parameters():
                p.data.clamp_(-0.01, 0.01)

        def load(model):
            model.load_state_dict(dict(model.state_dict(), **{"3.weight": torch.ones(3, 16)}))

        def other_memory(model):
            model[3].weight.data = model[3].weight.data * 2

        def transpose(model):
            model[3].weight.data = model[3].weight.data.t().contiguous().t() + 1

        text = "was changed in the loop, .*optimizer.clip_weights of the job, .*opt.snapshot"
        for change in (clamp, clamp_all_unseen_by_torch, load, other_memory, transpose):
            name = r"\d.[a-z]+" if change is clamp_all_unseen_by_torch else "3.weight"
            for at in (0, 3, STEPS - 1):
                with self.subTest(change.__name__, at=at):
                    model = train.make_model()
                    done = self.refused(f"^{name} {text}", model, after=lambda n, _: n != at or change(model))
                    self.assertEqual(done, at + 1)
                    model = train.make_model()
                    done = self.refused(f"^{name} {text}", model, before=lambda n, _: n != at or change(model))
                    # Before its gradient goes, where torch counts the change.
                    self.assertEqual(done, at + (change not in (clamp, load)))

    def test_a_change_that_torch_does_not_count_is_found_in_a_sample(self):
        """Of one tensor among many within as many batches; and in a large one by and by."""
        model = train.make_model()
        done = self.refused("^3.bias was changed", model, after=lambda n, _: n < 2 or model[3].bias.data.add_(1e-3))
        self.assertLess(done, 2 + 5)
        # After the first batches a sample is taken of every eighth.
        model = train.make_model()
        done = self.refused("^3.bias was changed", model, train={"examples": 150 * BATCH},
                            after=lambda n, _: n < 90 or model[3].bias.data.add_(1e-3))
        self.assertLess(done, 90 + 5 * 8)
        wide = torch.nn.Sequential(torch.nn.Linear(6, 1000), torch.nn.Linear(1000, 3))
        done = self.refused("^0.weight was changed", wide, train={"examples": 150 * BATCH},
                            after=lambda n, _: wide[0].weight.data[-1].add_(1))
        self.assertLess(done, 4 * 25)

    def test_types_that_are_not_the_servers(self):
        """bfloat16, and a layout with gaps, by rows."""
        for kind in ("bfloat16", "gaps"):
            for unseen in (False, True):
                with self.subTest(kind, unseen=unseen):
                    model = train.make_model()
                    if kind == "gaps":
                        for p in model.parameters():
                            p.data = torch.stack([p.data, p.data], -1)[..., 0]
                    else:
                        model.bfloat16()
                    self.assertEqual(loop(model), STEPS)
                    done = self.refused(r"^\d.[a-z]+ was changed in the loop", model, train={"examples": 50 * BATCH},
                                        after=lambda n, _: [(p.data if unseen else p.detach()).add_(1) for p in model.parameters()])
                    self.assertLessEqual(done, 2)

    def test_a_square_weight_that_is_transposed(self):
        """Again and again: its memory is at first as it was."""
        model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 3))

        def transpose(n, _):
            if n >= 1:
                model[0].weight.data = model[0].weight.data.t()

        self.assertLess(self.refused("^0.weight was changed", model, after=transpose), 2 + 5)

    def test_an_embedding_that_forward_changes(self):
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.words = torch.nn.Embedding(8, 3, max_norm=0.1)

            def forward(self, x):
                return self.words((x[:, 0] > 0).long())

        self.assertEqual(self.refused("^words.weight was changed in the loop", Model()), 0)

    def test_values_that_are_put_back(self):
        """Weights of an average are evaluated in the loop, in the ways that programs have; and snapshots are taken."""
        def run(swap):
            model = train.make_model(norm=True)
            average = {name: value.clone() for name, value in model.state_dict().items()}

            def twice(_, opt):
                before = {name: value.clone() for name, value in model.state_dict().items()}
                swap(model, opt, average, before)
                for name, value in before.items():
                    average[name].lerp_(value, 0.1) if value.is_floating_point() else average[name].copy_(value)

            self.assertEqual(loop(model, after=twice), STEPS)
            return model.state_dict()

        def nothing(model, opt, average, before):
            pass

        def copy(model, opt, average, before):
            with torch.no_grad():
                for values in (average, before):
                    for name, p in model.named_parameters():
                        p.copy_(values[name])

        def other_memory(model, opt, average, before):
            kept = {name: p.data for name, p in model.named_parameters()}
            for values in (average, kept):
                for name, p in model.named_parameters():
                    p.data = values[name]

        def other_memory_for_good(model, opt, average, before):
            for name, p in model.named_parameters():
                p.data = before[name].clone()

        def state(model, opt, average, before):
            model.load_state_dict(average)
            model.load_state_dict(before)

        def snapshot(model, opt, average, before):
            with opt.snapshot():
                for p in model.parameters():
                    p.data.zero_()
            train.measure(model, train.Examples())
            model.train()

        expected = run(nothing)
        for swap in (copy, other_memory, other_memory_for_good, state, snapshot):
            with self.subTest(swap.__name__):
                for name, value in run(swap).items():
                    self.assertTrue(torch.equal(value, expected[name]), name)

    def test_a_snapshot_does_not_hide_a_change(self):
        model = train.make_model()

        def change(_, opt):
            with torch.no_grad():
                model[0].bias.add_(1)
            with opt.snapshot():
                pass

        self.assertEqual(self.refused("^0.bias was changed", model, after=change), 1)


class Structure(unittest.TestCase):
    """Modules and parameters; torch_use_test.py has more."""

    def at(self, change, at, text, make=train.make_model, then=0):
        """The change is refused in the batch `at`, or at most `then` later."""
        model, done = make(), []
        with self.assertRaisesRegex(weir.ConfigError, text):
            loop(model, after=lambda n, _: (done.append(n), n != at - 1 or change(model)), train={"examples": 30 * BATCH})
        self.assertLessEqual(at, len(done))
        self.assertLessEqual(len(done), at + then)

    def test_what_is_refused(self):
        def frozen():
            model = train.make_model()
            model[0].requires_grad_(False)
            return model

        was = "is not as it was when the optimizer was made"
        self.at(lambda m: m[0].requires_grad_(True), 4, f"^0.weight {was}: it was unfrozen since, and would not be trained", frozen)
        self.at(lambda m: m[3].requires_grad_(False), 4, "^3.weight was frozen after")
        self.at(lambda m: m.__setitem__(3, torch.nn.Linear(16, 3)), 4, f"^3.weight {was}: its layer was replaced")
        self.at(lambda m: m.add_module("more", torch.nn.Linear(3, 3)), 3, f"^more.weight {was}", then=8)
        self.at(lambda m: m[3].register_parameter("more", torch.nn.Parameter(torch.ones(1))), 3, f"^3.more {was}", then=8)
        self.at(lambda m: setattr(m[3], "bias", torch.nn.Parameter(torch.ones(3))), 3, f"^3.bias {was}")
        self.at(lambda m: m.bfloat16(), 3, f"^0.weight {was}: it is torch.bfloat16 now, and was torch.float32")
        self.at(lambda m: setattr(m[3].bias, "data", torch.zeros(1)), 3, rf"^3.bias {was}: it is of shape \(1,\) now, and was of shape \(3,\)")

    def test_modules_without_tensors_may_change(self):
        model = train.make_model()

        def change(n, _):
            model[2] = torch.nn.Dropout(n / 20)
            if n == 3:
                model.add_module("last", torch.nn.Identity())

        self.assertEqual(loop(model, after=change), STEPS)


if __name__ == "__main__":
    unittest.main()
