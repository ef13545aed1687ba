#!/usr/bin/python3
"""weir.torch as its users meet it: what works as with torch, what is refused, and streams of data."""
import collections
import subprocess
import textwrap
import unittest

import numpy as np
import support
import torch
import torch.nn.functional as F
import train
import weir
import weir.torch
from torch_jobs import BATCH, EPOCHS, PARTS, RATE, SEED, STEPS, Run, gradient, job


class Use(unittest.TestCase):
    """The optimizer as users of torch know it, and what it refuses."""

    def optimizer(self, model=None, data=None, **fields):
        return weir.torch.Optimizer(model or train.make_model(), job(**fields), data or train.Examples())

    def test_it_is_an_optimizer(self):
        opt = self.optimizer()
        self.assertIsInstance(opt, torch.optim.Optimizer)
        self.assertEqual(opt.state_dict()["param_groups"][0]["lr"], RATE)

    def test_a_data_set_that_makes_whole_batches(self):
        """With __getitems__, as for PyTorch's own loaders."""
        asked = []

        class Whole(train.Examples):
            def __getitems__(self, indices):
                asked.append(indices)
                return [self[i] for i in indices]

        seen = []
        for x, y, numbers, _ in (opt := self.optimizer(data=Whole())).loader():
            seen.append(numbers.tolist())
            opt.zero_grad()
            opt.step()
        self.assertEqual(asked, seen)
        self.assertEqual(len(seen), EPOCHS * len(train.Examples()) // BATCH)

    def test_a_later_batch_takes_the_memory_of_a_gradient(self):
        """And yet a gradient that is missing counts as zeros."""
        model = train.make_model(dropout=0)
        opt = self.optimizer(model, optimizer={"type": "sgd", "learning_rate": RATE}, consistency={"mode": "sync"})
        memory, before = set(), None
        for n, (x, y, *_) in enumerate(opt.loader()):
            if n == 4:
                for name, value in model.state_dict().items():
                    self.assertTrue(torch.equal(value, before[name]), name)
            before = {name: value.clone() for name, value in model.state_dict().items()}
            opt.zero_grad(set_to_none=True)
            if n != 3:
                F.cross_entropy(model(x), y).backward()
            memory.add(opt._step.gradient.flat.ctypes.data)
            opt.step()
        self.assertLess(len(memory), 4)

    def test_gradients_begin_as_none_unless_zeros_are_wanted(self):
        model = train.make_model(dropout=0)
        opt = self.optimizer(model)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        opt.zero_grad(set_to_none=False)
        for parameter in model.parameters():
            self.assertTrue(torch.equal(parameter.grad, torch.zeros_like(parameter)))
        opt.zero_grad()
        self.assertEqual([parameter.grad for parameter in model.parameters()], [None] * len(list(model.parameters())))

    def test_frozen_and_tied_parameters_and_buffers(self):
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.frozen = torch.nn.Linear(6, 6)
                self.frozen.requires_grad_(False)
                self.norm = torch.nn.BatchNorm1d(6)
                self.a = torch.nn.Linear(6, 6)
                self.b = torch.nn.Linear(6, 6)
                self.b.weight = self.a.weight
                self.unused = torch.nn.Parameter(torch.ones(2))

            def forward(self, x):
                return self.b(self.a(self.norm(self.frozen(x))))[:, :3]

        model = Model()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        opt = self.optimizer(model)
        for x, y, *_ in opt.loader():
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
        after = model.state_dict()
        changed = {name for name in after if not torch.equal(after[name], before[name])}
        self.assertTrue({"a.weight", "a.bias", "b.weight", "norm.weight", "norm.running_mean"} <= changed, changed)
        self.assertFalse({"frozen.weight", "frozen.bias", "unused"} & changed)
        self.assertIs(model.a.weight, model.b.weight)
        self.assertEqual(after["norm.num_batches_tracked"], STEPS)

    def test_clip_norm_and_a_closure(self):
        data, ours, theirs = train.Examples(), train.make_model(0), train.make_model(0)
        opt = self.optimizer(ours, data, train={"examples": 4 * BATCH, "clip_norm": 0.05},
                             optimizer={"type": "sgd", "learning_rate": 1}, consistency={"mode": "sync"})
        for x, y, *_ in opt.loader():
            def closure():
                opt.zero_grad()
                loss = F.cross_entropy(ours(x), y)
                loss.backward()
                return loss
            self.assertGreater(opt.step(closure).item(), 0)
        order = weir.ExampleOrder(len(data), SEED)
        sgd = torch.optim.SGD(theirs.parameters(), lr=1)
        for step in range(4):
            gradient(theirs, data, torch.from_numpy(order(step * BATCH, BATCH)).long())
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.05)
            sgd.step()
        for a, b in zip(ours.parameters(), theirs.parameters()):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)

    def test_a_clipped_mean_is_that_of_ddp(self):
        """DistributedDataParallel makes the mean over its processes, which clip_grad_norm_ then clips."""
        data, ours, theirs = train.Examples(), train.make_model(0), train.make_model(0)
        opt = self.optimizer(ours, data, train={"steps": 4, "clip_norm": 0.05, "clip": "mean"},
                             optimizer={"type": "sgd", "learning_rate": 1}, consistency={"mode": "sync", "parts": 2})
        for x, y, *_ in opt.loader():
            opt.zero_grad()
            F.cross_entropy(ours(x), y).backward()
            opt.step()
        order = weir.ExampleOrder(len(data), SEED)
        sgd = torch.optim.SGD(theirs.parameters(), lr=1)
        for step in range(4):
            parts = [gradient(theirs, data, torch.from_numpy(order((2 * step + part) * BATCH, BATCH)).long()) for part in range(2)]
            for parameter, *grads in zip(theirs.parameters(), *parts):
                parameter.grad = sum(grads) / 2
            self.assertGreater(torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.05), 0.05)
            sgd.step()
        for a, b in zip(ours.parameters(), theirs.parameters()):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)

    def test_counts_are_rounded(self):
        """The mean of equal counts over the parts of a step may be a little less."""
        model = train.make_model(norm=True)
        weights = weir.torch.weights.ModelWeights(model)
        values = weir.job.Model(weights.tensors()).split(np.concatenate([a.ravel() for a in weights.arrays().values()]))
        values["4.num_batches_tracked"][...] = np.nextafter(np.float32(3), np.float32(0))
        weights.load(values)
        self.assertEqual(model[4].num_batches_tracked, 3)

    def test_large_counts(self):
        """They are exact below 2^24 / (parts + 1), and end at 2^24."""
        limit = 2**24
        cases = [("sync", limit // (PARTS + 1) - STEPS, STEPS), ("async", limit - 2, 2)]
        for mode, begin, counted in cases:
            with self.subTest(mode=mode):
                model = train.make_model(norm=True)
                model[4].num_batches_tracked.fill_(begin)
                more = {} if mode == "sync" else {"consistency": {"mode": mode}}
                for x, y, *_ in (opt := self.optimizer(model, **more)).loader():
                    opt.zero_grad()
                    F.cross_entropy(model(x), y).backward()
                    opt.step()
                self.assertEqual(model[4].num_batches_tracked, begin + counted)

    def test_clip_norm_leaves_running_statistics_alone(self):
        """A tiny limit stops the weights, but not the statistics."""
        model = train.make_model(norm=True)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        opt = self.optimizer(model, train={"epochs": 1, "clip_norm": 1e-12}, consistency={"mode": "async"})
        for x, y, *_ in opt.loader():
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
        after = model.state_dict()
        torch.testing.assert_close(after["0.weight"], before["0.weight"], rtol=0, atol=1e-9)
        self.assertGreater((after["4.running_mean"] - before["4.running_mean"]).abs().max(), 0.001)
        self.assertEqual(after["4.num_batches_tracked"], train.EXAMPLES // BATCH)

    def test_bfloat16_parameters(self):
        """The servers have float32 values, and the model has them rounded."""
        data, ours, theirs = train.Examples(), train.make_model(0).bfloat16(), train.make_model(0).bfloat16()
        opt = self.optimizer(ours, data, train={"examples": 20 * BATCH}, optimizer={"type": "sgd", "learning_rate": RATE},
                             consistency={"mode": "sync"})
        for x, y, *_ in opt.loader():
            opt.zero_grad()
            F.cross_entropy(ours(x.bfloat16()), y).backward()
            opt.step()
        order = weir.ExampleOrder(len(data), SEED)
        values = [p.detach().float() for p in theirs.parameters()]
        for step in range(20):
            indices = torch.from_numpy(order(step * BATCH, BATCH)).long()
            theirs.zero_grad()
            F.cross_entropy(theirs(data.x[indices].bfloat16()), data.y[indices]).backward()
            with torch.no_grad():
                for p, value in zip(theirs.parameters(), values):
                    value.sub_(RATE * p.grad.float())
                    p.copy_(value)
        for a, b in zip(ours.parameters(), theirs.parameters()):
            self.assertEqual(a.dtype, torch.bfloat16)
            self.assertTrue(torch.equal(a, b))

    def test_snapshot(self):
        model = train.make_model()
        opt = self.optimizer(model)
        versions = []
        for x, y, *_ in opt.loader():
            own = [p.clone() for p in model.parameters()]
            with opt.snapshot() as version:
                versions.append(version)
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(own, model.parameters())))
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
        self.assertEqual(versions[0], 0)
        self.assertEqual(versions[-1], STEPS - 1)

    def test_a_snapshot_between_forward_and_backward(self):
        """The gradient is that of the weights that forward had, whatever the model has in the meantime."""
        model, data = train.make_model(0), train.Examples()
        opt = self.optimizer(model, data)
        for x, y, *_ in opt.loader():
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            with opt.snapshot(), torch.no_grad():
                model(x)
            loss.backward()
            grads = [p.grad.clone() for p in model.parameters()]
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            for p, grad in zip(model.parameters(), grads):
                self.assertTrue(torch.equal(p.grad, grad))
            opt.step(loss=loss.reshape(1, 1))

    def test_misuse_is_refused_with_what_to_do(self):
        def loop(change):
            opt = self.optimizer()
            for x, y, *_ in opt.loader():
                F.cross_entropy(torch.nn.Linear(6, 3)(x), y).backward()
                change(opt)
                opt.step()

        def twice(opt):
            opt.step()

        def schedule(opt):
            opt.param_groups[0]["lr"] = 0.5

        cases = [
            ("loader", lambda: self.optimizer().step()),
            ("step() was called already for this batch", lambda: loop(twice)),
            ("optimizer.schedule", lambda: loop(schedule)),
            ("optimizer.groups", lambda: self.optimizer().add_param_group({"params": []})),
            ("checkpoint.directory", lambda: self.optimizer().load_state_dict({})),
            ("data.batch_size", lambda: self.optimizer().loader(batch_size=4)),
            ("GradScaler", lambda: getattr(self.optimizer(), "_step_supports_amp_scaling")),
            ("float32", lambda: self.optimizer(torch.nn.Linear(2, 2).double())),
            ("not model.parameters()", lambda: self.optimizer(train.make_model().parameters())),
            ("weight is on meta", lambda: self.optimizer(torch.nn.Linear(2, 2, device="meta"))),
            ("num_workers", lambda: self.optimizer().loader(pin_memory=True)),
            ("no parameter that requires", lambda: self.optimizer(torch.nn.ReLU())),
            ("map-style", lambda: self.optimizer(data=iter([]))),
            ("train.micro_batches", lambda: self.optimizer(train={"micro_batches": 2})),
            ("worker", lambda: self.optimizer(cluster={"workers": 2}).loader().__next__()),
            ("opt.step(loss=loss)", lambda: loop(lambda opt: opt.step(torch.tensor(0.5)))),
            ("got Tensor of shape (3,)", lambda: loop(lambda opt: opt.step(loss=torch.ones(3)))),
            ("got str", lambda: loop(lambda opt: opt.step(loss="0.5"))),
            ("got list", lambda: loop(lambda opt: opt.step(loss=[0.5]))),
            ("the order is weir.torch.Optimizer(model, job, train_set)",
             lambda: weir.torch.Optimizer(train.make_model(), train.Examples(), job())),
            ("got Sequential", lambda: weir.torch.Optimizer(train.make_model(), train.make_model(), train.Examples())),
            ("model must be the torch.nn.Module itself, got dict", lambda: weir.torch.Reader(job(), train.make_model())),
            ("model must be the torch.nn.Module itself, got str", lambda: weir.torch.save_weights("folder", train.make_model())),
            ("sampler must be a function", lambda: self.optimizer().loader(sampler=[1, 2])),
        ]
        for text, call in cases:
            with self.subTest(text):
                with self.assertRaises(weir.Error) as caught:
                    call()
                self.assertIn(text, str(caught.exception))

    def test_what_was_trained_needs_no_weir(self):
        """A Python without Weir loads what torch.save() made of the model, of its state and of the optimizer's."""
        for overlap in (False, True):
            with self.subTest(overlap=overlap), support.folder() as folder:
                model = train.make_model(norm=True)
                opt = weir.torch.Optimizer(model, job(), train.Examples(), overlap=overlap)
                for x, y, *_ in opt.loader():
                    opt.zero_grad()
                    F.cross_entropy(model(x), y).backward()
                    opt.step()
                x = train.Examples().x
                torch.save({"model": model.state_dict(), "optimizer": opt.state_dict(), "whole": model, "x": x,
                            "y": model.eval()(x).detach()}, f"{folder}/saved.pt")
                done = support.run([support.PYTHON, "-I", "-c", textwrap.dedent(f"""
                    import importlib.util, sys, torch
                    from torch.nn import BatchNorm1d, Dropout, Linear, Sequential, Tanh
                    assert importlib.util.find_spec("weir") is None
                    torch.set_num_threads(1)
                    saved = torch.load("{folder}/saved.pt")
                    plain = Sequential(Linear(6, 16), Tanh(), Dropout(), Linear(16, 3), BatchNorm1d(3),
                                       BatchNorm1d(3, momentum=None))
                    plain.load_state_dict(saved["model"])
                    for model in (plain, saved["whole"]):
                        assert torch.equal(model.eval()(saved["x"]), saved["y"])
                    (group,) = saved["optimizer"]["param_groups"]
                    assert group["lr"] == {RATE} and saved["optimizer"]["state"] == {{}}, saved["optimizer"]
                """)], cwd=folder)
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_settings_of_torchs_optimizers_are_the_jobs(self):
        for keyword, text in (({"lr": 0.1}, "takes no lr: .* this one is optimizer.learning_rate"),
                              ({"betas": (0.9, 0.99)}, "optimizer.beta1 and optimizer.beta2"), ({"foreach": True}, "takes no foreach")):
            with self.subTest(**keyword), self.assertRaisesRegex(TypeError, text):
                weir.torch.Optimizer(train.make_model(), job(), train.Examples(), **keyword)

    def test_a_loader_that_is_closed(self):
        loader = self.optimizer().loader()
        self.assertTrue(loader)
        self.assertEqual(len(next(loader)), 4)
        loader.close()
        with self.assertRaises(StopIteration):
            next(loader)

    def test_a_model_that_is_changed_after_the_optimizer_was_made(self):
        def replace(model):
            model[3] = torch.nn.Linear(16, 3)

        def add(model):
            model.append(torch.nn.Linear(3, 3))

        def unfreeze(model):
            model[0].weight.requires_grad_(True)

        changes = {replace: "3.weight", add: "4.weight", unfreeze: "0.weight"}
        # At which batch. Later ones are not looked at, unless a parameter has no gradient any more.
        cases = [(change, at) for change in changes for at in (None, 0)] + [(replace, 3)]
        for change, at in cases:
            with self.subTest(change.__name__, at=at):
                model = train.make_model()
                if change is unfreeze:
                    model[0].weight.requires_grad_(False)
                opt = self.optimizer(model)
                if at is None:
                    change(model)
                with self.assertRaisesRegex(weir.ConfigError, f"^{changes[change]} is not as it was when the optimizer was made"):
                    for n, (x, y, *_) in enumerate(opt.loader()):
                        self.assertIsNotNone(at)
                        self.assertLessEqual(n, at)
                        if n == at:
                            change(model)
                        opt.zero_grad()
                        F.cross_entropy(model(x), y).backward()
                        opt.step()

    def test_a_backward_that_is_missing(self):
        opt = self.optimizer()
        with self.assertWarnsRegex(UserWarning, "no parameter of the model has a gradient: was backward\\(\\) called"):
            for _ in opt.loader():
                opt.zero_grad()
                opt.step()

    def test_the_rank(self):
        opt = self.optimizer()
        self.assertEqual(opt.rank, 0)
        for _ in opt.loader():
            self.assertEqual(opt.rank, 0)
            opt.step()
        self.assertEqual(opt.rank, 0)
        with self.assertRaisesRegex(weir.Error, "after it the optimizer has rank"):
            opt.client  # pylint: disable=pointless-statement

    def test_a_parameter_that_is_frozen_after_the_optimizer_was_made(self):
        """Its momentum would move it on, without gradients."""
        model = train.make_model()
        opt = self.optimizer(model)
        with self.assertRaisesRegex(weir.ConfigError, "^0.weight was frozen after the optimizer was made.*before"):
            for n, (x, y, *_) in enumerate(opt.loader()):
                self.assertLess(n, 4)
                model[0].weight.requires_grad_(n < 3)
                opt.zero_grad()
                F.cross_entropy(model(x), y).backward()
                opt.step()
        model = train.make_model()
        opt = self.optimizer(model)
        model[0].weight.requires_grad_(False)
        with self.assertRaisesRegex(weir.ConfigError, "^0.weight was frozen"):
            opt.loader()

    def test_a_group_that_fits_no_tensor(self):
        opt = self.optimizer(optimizer={"type": "sgd", "learning_rate": RATE, "groups": [{"match": "*/bias", "weight_decay": 0}]})
        with self.assertRaisesRegex(weir.ConfigError, r'groups\[0\].match: "\*/bias" fits no tensor .* 0.weight, 0.bias'):
            next(opt.loader())

    def test_a_step_that_is_missing(self):
        with self.assertRaisesRegex(weir.Error, "step\\(\\) was not called"):
            for _ in self.optimizer().loader():
                pass

    def test_leaving_early(self):
        opt = self.optimizer()
        for _ in opt.loader():
            break
        with self.assertRaises(weir.Error):
            opt.client


class Stream(unittest.TestCase):
    """An IterableDataset, in the modes that give out ranges."""

    def test_each_worker_goes_through_it(self):
        for length, num_workers in ((True, 0), (True, 2), (False, 0)):
            with self.subTest(length=length, num_workers=num_workers):
                fields = {} if length else {"train": {"examples": EPOCHS * train.EXAMPLES}}
                data = (train.SizedStream if length else train.Stream)()
                model = train.make_model()
                opt = weir.torch.Optimizer(model, job(consistency={"mode": "async"}, **fields), data)
                seen, makers = collections.Counter(), set()
                for x, y, numbers, pids in opt.loader(num_workers=num_workers):
                    opt.zero_grad()
                    F.cross_entropy(model(x), y).backward()
                    opt.step()
                    seen.update(numbers.tolist())
                    makers.update(pids.tolist())
                # One worker makes whole passes.
                self.assertEqual(set(seen.values()), {EPOCHS})
                # None was forked after the first pass, when it would have shared connections.
                self.assertEqual(len(makers), num_workers or 1)

    def test_two_workers(self):
        """Each goes through the whole stream, from its beginning; the job's length counts the batches of both."""
        for mode in ({"mode": "bounded", "staleness": 1}, {"mode": "async"}):
            with self.subTest(**mode):
                run = Run(self, consistency=mode)
                done = support.run(run.up("--workers=2", "--ps=2", program=["--stream"]))
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(sum(run.seen().values()), EPOCHS * train.EXAMPLES)
                for path in run.folder.glob("seen-*"):
                    seen = [int(n) for n in path.read_text().split()]
                    self.assertEqual(seen, [i % train.EXAMPLES for i in range(len(seen))])
                models = run.models()
                for model in models[1:]:
                    for name, value in models[0].items():
                        self.assertTrue(torch.equal(model[name], value), name)

    def test_what_is_refused(self):
        class Empty(train.Stream):
            def __iter__(self):
                return iter(())

        def first(data, **fields):
            next(weir.torch.Optimizer(train.make_model(), job(**fields), data).loader())

        cases = [("without shard(), but in sync each part of a step", lambda: first(train.SizedStream())),
                 ("train.examples", lambda: first(train.Stream(), consistency={"mode": "async"})),
                 ("has no examples", lambda: first(Empty(), consistency={"mode": "async"}, train={"examples": 8}))]
        for text, call in cases:
            with self.subTest(text):
                with self.assertRaises(weir.ConfigError) as caught:
                    call()
                self.assertIn(text, str(caught.exception))


class Up(unittest.TestCase):
    def test_an_exception_is_the_first_cause(self):
        run = Run(self)
        done = support.run(run.up("--workers=2", program=["--fail_at=3"]))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("ValueError: this batch is bad", done.stderr)
        self.assertRegex(done.stderr, "error: worker:[01] exited with 1")

    def test_a_worker_that_leaves_the_loop(self):
        """The others do the rest. When all leave, ps:0 is the first cause, and says how far the job was."""
        run = Run(self)
        done = support.run(run.up("--workers=2", program=["--leave_at=2", "--one_leaves"]))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("it gave up: its loop over loader() ended", done.stderr)
        self.assertRegex(done.stdout, rf"steps +{STEPS} ")
        run = Run(self)
        done = support.run(run.up("--workers=2", "--ps=2", program=["--leave_at=2"]))
        self.assertEqual(done.returncode, 138, done.stderr)
        self.assertRegex(done.stderr, "(?m)^error: ps:0 exited with 138")
        self.assertRegex(done.stderr, rf"every worker gave up after \d+ of {STEPS} steps, worker:[01] as the last one: its loop over loader")
        self.assertRegex(done.stderr, "(?m)^hint: the workers' programs ended well; .* train.epochs")

    def test_a_program_that_never_joins(self):
        run = Run(self)
        done = support.run([support.ROOT / "cli/weir", "up", "--workers=2", run.job, "--", support.PYTHON, "-c", "print('bye')"])
        self.assertEqual(done.returncode, 70, done.stderr)
        self.assertRegex(done.stderr, "(?m)^error: the program of worker:[01] ended after .* without joining the job")

    def test_who_trains(self):
        run = Run(self)
        program = ["--", "python"]
        for flags, text in (([], "weir up JOB -- PROGRAM ARGS"), (["--device=cpu", *program], "--device")):
            done = support.run([support.ROOT / "cli/weir", "up", run.job, *flags])
            self.assertEqual(done.returncode, 78, done.stderr)
            self.assertIn(text, done.stderr)
        done = support.run([support.ROOT / "worker/worker", f"--config={run.job}"])
        self.assertEqual(done.returncode, 78, done.stderr)
        self.assertIn("model and data are missing", done.stderr)
        done = support.run([support.ROOT / "cli/weir", "config", "check", run.job])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("of the program that the job is for", done.stdout)

    def test_a_program_that_goes_on_after_the_job(self):
        """`weir up` says so, and waits for it. If it fails in every worker, so does `weir up`."""
        run = Run(self)
        with subprocess.Popen(run.up("--workers=2", "--ps=2", program=["--go_on"]), stderr=subprocess.PIPE, text=True) as process:
            said = []
            for line in process.stderr:
                said.append(line)
                if "done; still running: worker:0, worker:1" in line:
                    (run.folder / "go").touch()
            self.assertEqual(process.wait(support.LIMIT_SECONDS), 0, "".join(said))
        self.assertEqual(len(run.models()), 2, "".join(said))
        run = Run(self)
        done = support.run(run.up("--workers=2", program=["--fail_after"]))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("the job is done, but the program of no worker ended well", done.stderr)

    def test_init_from(self):
        """A folder of initial weights comes before those that the workers have."""
        run = Run(self)
        other = train.make_model()
        with torch.no_grad():
            for p in other.parameters():
                p.add_(1)
        weir.torch.save_weights(other, run.folder / "initial")
        run.check(support.run(run.up("--workers=2", f"--init_from={run.folder}/initial")), models=2, begin=other)


if __name__ == "__main__":
    unittest.main()
