#!/usr/bin/python3
"""Local steps of weir.torch: rounds have the bits of a serial loop of torch's optimizers, whoever computes them; what cannot be done with
them is refused by name."""
import unittest
import unittest.mock
import warnings

import support
import torch
import torch.nn.functional as F
import train
import weir
import weir.torch
from torch.optim import SGD, Adagrad, AdamW, lr_scheduler
from torch_jobs import BATCH, EPOCHS, PARTS, SEED, Run, job, serial_rounds, serial_run
from weir.exchange import Work
from weir.torch.batches import WorkPredictor
from weir.torch.streams import PartStream

H = 2
ONE = {"mode": "sync", "parts": 1}


class Many(unittest.TestCase):
    """Real processes."""

    def test_any_number_of_workers_and_servers(self):
        expected = serial_rounds(H)
        self.assertFalse(torch.equal(expected["0.weight"], serial_run()["0.weight"]))
        for workers, servers, *flags in ((1, 2), (2, 1, "--num_workers=1"), (3, 2)):
            with self.subTest(workers=workers, servers=servers):
                run = Run(self, local={"steps": H})
                run.check(support.run(run.up(f"--workers={workers}", f"--ps={servers}", program=["--inner", *flags])), workers,
                          expected=expected)
                run.check_once()
                if flags:
                    self.assertLess(run.made_here(), EPOCHS * train.EXAMPLES // BATCH / 4)

    def test_a_killed_worker(self):
        """In the middle of a round, which another worker does from its beginning."""
        run = Run(self, {"norm": True}, local={"steps": H})
        done = support.run(run.up("--workers=2", "--ps=2", "--restart", program=["--inner", "--die_at=3"]))
        self.assertTrue((run.folder / "died").exists())
        run.check(done, models=(1, 2), expected=serial_rounds(H, norm=True))

    def test_kept_state(self):
        """Each part has its own, so one worker's bits are those of a worker for each part."""
        run = Run(self, local={"steps": H, "keep_state": True})
        run.check(support.run(run.up(f"--workers={PARTS}", "--ps=2", program=["--inner"])), PARTS, expected=serial_rounds(H, keeps=True))

    def test_async(self):
        run = Run(self, consistency={"mode": "async"}, local={"steps": H}, optimizer={"type": "sgd", "learning_rate": 0.5})
        done = support.run(run.up("--workers=2", "--ps=2", program=["--inner"]))
        self.assertEqual(done.returncode, 0, done.stderr)
        run.check_once()
        data, first = train.Examples(), train.make_model()
        for state in run.models():
            model = train.make_model()
            model.load_state_dict(state)
            self.assertLess(train.measure(model, data)["loss"], train.measure(first, data)["loss"] - 0.1)


def train_here(inner, at_batch=None, loader=None, clip=None, model=None, data=None, step=None, **fields):
    """The weights of a job of one process."""
    model = model or train.make_model()
    inner = inner(model)
    opt = weir.torch.Optimizer(model, job(**{"local": {"steps": H}, "consistency": ONE, **fields}), data or train.Examples(), inner=inner)
    for n, (x, y, *_) in enumerate(opt.loader(**(loader or {}))):
        if at_batch is not None:
            at_batch(n, opt, model, inner)
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if clip is not None:
            clip(model)
        if step is None:
            opt.step(loss=loss)
        else:
            step(n, opt, model, x, y)
    return model.state_dict()


class Here(unittest.TestCase):
    def same(self, found, expected):
        for name, value in expected.items():
            self.assertTrue(torch.equal(found[name], value), f"{name} has other bits")

    def test_optimizers(self):
        for make in (lambda m: SGD(m.parameters(), lr=0.1, momentum=0.9), lambda m: Adagrad(m.parameters()),
                     lambda m: AdamW([{"params": m[0].parameters(), "lr": 0.1}, {"params": m[3].parameters()}])):
            self.same(train_here(make), serial_rounds(H, make, parts=1))

    def test_parts_and_statistics(self):
        model = train.make_model(norm=True)
        self.same(train_here(train.make_inner, model=model, consistency={"mode": "sync", "parts": PARTS}), serial_rounds(H, norm=True))

    def test_one_step_a_round(self):
        self.same(train_here(train.make_inner, local={"steps": 1}), serial_rounds(1, parts=1))

    def test_plain_sgd_is_the_gradient(self):
        """One step of it, at rate 1, pushes the gradient but for the rounding of a weight."""
        found = train_here(lambda m: SGD(m.parameters(), lr=1.0), local={"steps": 1}, train={"epochs": 1})
        model = train.make_model()
        opt = weir.torch.Optimizer(model, job(consistency=ONE, train={"epochs": 1}), train.Examples())
        for x, y, *_ in opt.loader():
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
        for name, value in model.state_dict().items():
            self.assertTrue(torch.allclose(found[name], value, rtol=0, atol=1e-5), name)

    def test_short_rounds(self):
        """The job's end is in the middle of a round, and of a batch."""
        sizes = []
        train_here(train.make_inner, local={"steps": 3}, train={"examples": 3 * BATCH + BATCH + 5},
                   step=lambda n, opt, model, x, y: (sizes.append(len(x)), opt.step()))
        self.assertEqual(sizes, [BATCH] * 4 + [5])

    def test_clipping(self):
        """The job's clips act on each step, and so do the program's own."""
        def norm(model):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)

        def value(model):
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)

        make = lambda m: SGD(m.parameters(), lr=0.1)
        for clip, field in ((norm, "clip_norm"), (value, "clip_value")):
            expected = serial_rounds(H, make, clip, parts=1)
            self.assertFalse(torch.equal(expected["0.weight"], serial_rounds(H, make, parts=1)["0.weight"]))
            self.same(train_here(make, clip=clip), expected)
            self.same(train_here(make, train={"epochs": 4, field: 0.05 if clip is norm else 0.01}), expected)

    def test_a_closure(self):
        def step(n, opt, model, x, y):
            def closure():
                torch.manual_seed((SEED + 0x9E3779B97F4A7C15 * (n + 1)) % 2**63)  # the dropout of the first forward again
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss
            self.assertGreater(float(opt.step(closure)), 0)

        self.same(train_here(train.make_inner, step=step), serial_rounds(H, parts=1))

    def test_accumulated_gradients(self):
        def step(n, opt, model, x, y):
            opt.zero_grad()
            for half in (slice(0, 4), slice(4, 8)):
                with opt.accumulate():
                    (F.cross_entropy(model(x[half]), y[half]) / 2).backward()
            opt.step()

        make = lambda m: SGD(m.parameters(), lr=0.1)
        found = train_here(make, model=train.make_model(dropout=0), step=step)
        for name, value in serial_rounds(H, make, parts=1, dropout=0).items():
            self.assertTrue(torch.allclose(found[name], value, rtol=0, atol=1e-5), name)

    def test_kept_state(self):
        """One worker keeps it through the job: with an outer rule that takes the result as it is, that is torch's own training."""
        for keeps, fields in ((True, {}), (True, {"consistency": {"mode": "async"}}), (False, {})):
            found = train_here(train.make_inner, local={"steps": H, "keep_state": keeps}, optimizer={"type": "sgd", "learning_rate": 1.0}, **fields)
            data, model = train.Examples(), train.make_model()
            inner, order = train.make_inner(model), weir.ExampleOrder(len(data), SEED)
            for batch in range(4 * len(data) // BATCH):
                indices = torch.from_numpy(order(batch * BATCH, BATCH)).long()
                torch.manual_seed((SEED + 0x9E3779B97F4A7C15 * (batch + 1)) % 2**63)
                inner.zero_grad()
                F.cross_entropy(model(data.x[indices]), data.y[indices]).backward()
                inner.step()
            near = all(torch.allclose(found[name], value, rtol=0, atol=1e-4) for name, value in model.state_dict().items())
            self.assertEqual(near, keeps)

    def test_kept_by_part(self):
        parts = {"mode": "sync", "parts": PARTS}
        for make in (train.make_inner, lambda m: SGD(m.parameters(), lr=0.1, momentum=0.9)):
            expected = serial_rounds(H, make, keeps=True)
            self.assertFalse(torch.equal(expected["0.weight"], serial_rounds(H, make)["0.weight"]))
            self.same(train_here(make, consistency=parts, local={"steps": H, "keep_state": True}), expected)

    def test_state_that_is_not_kept(self):
        """That of a membership which was lost, of a part that others have done since, and of values that are not finite."""
        local, anew = {"steps": H, "keep_state": True}, serial_rounds(H, parts=1)
        with unittest.mock.patch.object(weir.Step, "membership", property(lambda step: step.work.clock)):
            self.same(train_here(train.make_inner, local=local), anew)

        def others_did(n, opt, model, x, y):
            opt.step()
            opt._local._kept = {part: (clock - 1, state) for part, (clock, state) in opt._local._kept.items()}

        self.same(train_here(train.make_inner, local=local, step=others_did), anew)

        def bad(n, opt, model, x, y):
            if n == 1:
                model[0].weight.grad.fill_(float("nan"))
            opt.step()
            if n >= H:
                self.assertTrue(all(torch.isfinite(p).all() for p in model.parameters()))

        train_here(train.make_inner, local=local, step=bad, consistency={**ONE, "on_nonfinite": "reject"})

    def test_bfloat16(self):
        """A round that moves nothing pushes zeros, though the servers' float32 values are others than the model's."""
        model = train.make_model().bfloat16()
        torch.manual_seed(3)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        found = train_here(lambda m: SGD(m.parameters(), lr=0.0), model=model, step=lambda n, opt, model, x, y: opt.step(),
                           data=[(x.bfloat16(), y) for x, y, *_ in (train.Examples()[i] for i in range(train.EXAMPLES))])
        self.same(found, before)

    def test_counts(self):
        seen = []

        def at_batch(n, opt, model, inner):
            seen.append(opt.local_step)
            self.assertEqual((opt.steps_total, opt.batches_total), (24, 48))
            opt.log(n=1.0)

        train_here(train.make_inner, at_batch)
        self.assertEqual(seen, list(range(48)))
        seen.clear()
        train_here(train.make_inner, lambda n, opt, *_: seen.append(opt.local_step), consistency={"mode": "sync", "parts": 2},
                   train={"steps": 2})
        self.assertEqual(seen, [0, 1, 0, 1, 2, 3, 2, 3])

    def test_rates_of_the_job(self):
        """A schedule that follows from opt.local_step."""
        def at_batch(n, opt, model, inner):
            inner.param_groups[0]["lr"] = 0.1 / (1 + opt.local_step)

        rates = iter(0.1 / (1 + i) for i in range(48))

        def scaled(model):  # gradients, as rates are of the step
            rate = next(rates)
            for p in model.parameters():
                p.grad.mul_(rate / 0.1)

        found = train_here(lambda m: SGD(m.parameters(), lr=0.1), at_batch)
        for name, value in serial_rounds(H, lambda m: SGD(m.parameters(), lr=0.1), scaled, parts=1).items():
            self.assertTrue(torch.allclose(found[name], value, rtol=0, atol=1e-6), name)

    def test_epochs_and_evaluation(self):
        """An epoch may begin within a round; what reads other weights leaves the round as it is."""
        def looks(n, opt, model, inner):
            own = [p.detach().clone() for p in model.parameters()]
            with opt.snapshot():
                pass
            self.assertTrue(all(map(torch.equal, own, model.parameters())))

        data = torch.utils.data.Subset(train.Examples(), range(40))
        model = train.make_model()
        opt = weir.torch.Optimizer(model, job(local={"steps": H}, consistency=ONE), data, inner=train.make_inner(model))
        batches = []
        for epoch in opt.epochs():
            batches.append(0)
            for n, (x, y, *_) in enumerate(epoch):
                batches[-1] += 1
                looks(n, opt, model, None)
                opt.zero_grad()
                F.cross_entropy(model(x), y).backward()
                opt.step()
        self.assertEqual(batches, [5, 5, 5, 5])
        other = train.make_model()
        self.same(train_here(train.make_inner, model=other, data=data), model.state_dict())

    def test_a_loss(self):
        """A round's is the mean over its batches."""
        losses = []

        class Line:
            def add(self, work, loss):
                losses.append((work.examples, loss))

            def close(self):
                pass

        def at_batch(n, opt, model, inner):
            if n == 0:
                opt._step._loop.progress._line = Line()

        def step(n, opt, model, x, y):
            opt.step(loss=None if n in (0, 2, 3) else float(n))

        train_here(train.make_inner, at_batch, step=step, train={"examples": 6 * BATCH})
        self.assertEqual(losses, [(16, 1.0), (16, None), (16, 4.5)])


class Refused(unittest.TestCase):
    def refused(self, words, function, *arguments, error=weir.ConfigError, **more):
        with self.assertRaises(error) as caught:
            function(*arguments, **more)
        self.assertIn(words, str(caught.exception))

    def test_when_it_is_made(self):
        def make(inner=train.make_inner, fields=None, **options):
            model = train.make_model()
            weir.torch.Optimizer(model, job(**{"local": {"steps": H}, **(fields or {})}), train.Examples(),
                                 inner=inner and inner(model), **options)

        other = train.make_model()
        for words, arguments in (
                ("inner is missing: local.steps is 2", dict(inner=None)),
                ("local.keep_state: is true, but a worker takes no steps of its own", dict(fields={"local": {"keep_state": True}})),
                ("inner must be one of torch's optimizers", dict(inner=lambda m: m.parameters())),
                ("overlap=True cannot be given with inner", dict(overlap=True)),
                ("0.weight requires a gradient, but it is in no parameter group of inner", dict(inner=lambda m: SGD(m[3].parameters(), lr=1))),
                ("of shape (16, 6) that is none of this model's", dict(
                    inner=lambda m: SGD([*m.parameters(), *other.parameters()], lr=1))),
                ("embedding tables", dict(fields={"local": {}, "tables": [{"name": "t", "dim": 4}]}))):
            with self.subTest(words):
                self.refused(words, make, **arguments)

    def test_jobs(self):
        model = train.make_model()
        made = weir.torch.job(SGD(model.parameters(), lr=0.7), batch_size=8, epochs=1, local_steps=5)
        self.assertEqual(made["local"], {"steps": 5})
        kept = weir.torch.job(SGD(model.parameters(), lr=0.7), batch_size=8, epochs=1, local_steps=5, local={"keep_state": True})
        self.assertEqual(kept["local"], {"steps": 5, "keep_state": True})
        for words, more in (("local.steps", dict(local_steps=0)), ("given as 3", dict(local_steps=2, local={"steps": 3}))):
            self.refused(words, lambda: weir.torch.job(SGD(model.parameters(), lr=0.7), batch_size=8, epochs=1, **more))

    def test_schedulers(self):
        def scheduled(model):
            inner = SGD(model.parameters(), lr=0.1)
            lr_scheduler.StepLR(inner, 5)
            return inner

        self.refused("set inner's rates from opt.local_step", train_here, scheduled)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            train_here(scheduled, local={"steps": H, "keep_state": True})
            train_here(scheduled, consistency={"mode": "async"})

    def test_weights(self):
        def some(n, opt, model, x, y):
            opt.step(weight=1 + n if n != 3 else None)

        self.refused("for some batches of a round", train_here, train.make_inner, step=some)
        self.refused("must be above 0", train_here, train.make_inner, step=lambda n, opt, *_: opt.step(weight=0))
        # A weight of every batch that is its examples changes nothing.
        parts = {"mode": "sync", "parts": PARTS}
        Here.same(self, train_here(train.make_inner, consistency=parts, step=lambda n, opt, model, x, y: opt.step(weight=len(x))),
                  serial_rounds(H))
        odd = train_here(train.make_inner, consistency=parts, step=lambda n, opt, model, x, y: opt.step(weight=1 + n % 7))
        self.assertFalse(torch.equal(odd["0.weight"], serial_rounds(H)["0.weight"]))

    def test_changes_after_the_push(self):
        """Within a round the weights are the program's; after it they are the servers'."""
        def clamp(n, opt, model, x, y, last):
            opt.step()
            if n % H == last:
                with torch.no_grad():
                    model[0].weight.clamp_(-0.1, 0.1)

        train_here(train.make_inner, step=lambda *a: clamp(*a, last=0))
        self.refused("0.weight was changed in the loop", train_here, train.make_inner, step=lambda *a: clamp(*a, last=1))

        def and_back(n, opt, model, x, y):
            opt.step()
            with torch.no_grad():
                own = model[0].weight.clone()
                model[0].weight.zero_()
                model[0].weight.copy_(own)

        Here.same(self, train_here(train.make_inner, step=and_back), serial_rounds(H, parts=1))

    def test_steps(self):
        self.refused("step() was called already for this batch", train_here, train.make_inner, error=weir.Error,
                     step=lambda n, opt, *_: (opt.step(), opt.step()))
        self.refused("step() was not called for the last batch", train_here, train.make_inner, error=weir.Error,
                     step=lambda n, opt, *_: None)
        self.refused("GradScaler cannot be used", train_here, train.make_inner, lambda n, opt, *_: opt._step_supports_amp_scaling)
        with self.assertWarnsRegex(UserWarning, "leaves the weights as they are"):
            train_here(train.make_inner, step=lambda n, opt, *_: (opt.zero_grad(), opt.step()), train={"epochs": 1})


class Making(unittest.TestCase):
    """Which batches are made, and ahead."""

    def test_guesses(self):
        """A worker that has parts 0 and 2 of 3, of 4 batches each: after one round the guesses are right."""
        predictor, guess, right = WorkPredictor(8, 3, 4), None, []
        for clock in range(4):
            for part in (0, 2):
                first = (clock * 3 + part) * 32
                for work in Work(clock, clock * 3 + part, first, 32, 9999, part, part == 2).batches(8):
                    right.append(guess == work.first_example)
                    predictor.saw(work)
                    predictor.restart(work)
                    guess = predictor.next()
        self.assertTrue(all(right[12:]), right)

    def test_streams(self):
        """Each part's batches are the next ones of its shard."""
        class Numbers(torch.utils.data.IterableDataset):
            def __init__(self, begin=0, step=1):
                self.begin, self.step = begin, step

            def shard(self, num_shards, index):
                return Numbers(index, num_shards)

            def __iter__(self):
                return iter(range(self.begin, 60, self.step))

        stream = PartStream(Numbers(), batch=2, parts=2, local_steps=3, job_seed=1)
        found = [stream[i] for i in range(24)]
        self.assertEqual(found, [*range(0, 12, 2), *range(1, 12, 2), *range(12, 24, 2), *range(13, 24, 2)])
        self.assertEqual(stream[0], 0)

    def test_sampler(self):
        """It arranges examples as without local steps."""
        seen = []
        for fields in ({}, {"local": {"steps": 1}}):
            batches = []
            train_here(train.make_inner, loader={"sampler": lambda indices: sorted(indices), "window": 3}, **fields,
                       step=lambda n, opt, model, x, y: (batches.append(y.tolist()), opt.step()))
            seen.append(batches)
        self.assertEqual(*seen)


if __name__ == "__main__":
    unittest.main()
