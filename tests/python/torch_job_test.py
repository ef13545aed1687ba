#!/usr/bin/python3
"""weir.torch.job(): torch's optimizers, groups and schedulers as a job, which trains as torch itself does; what the servers do not have is
refused by name."""
import json
import pathlib
import unittest

import numpy as np
import support
import torch
import weir
import weir.torch
from torch.optim import SGD, Adagrad, Adam, Adamax, AdamW, RMSprop, lr_scheduler
from torch_jobs import serial_run

# Long enough for each factor to count, also that of Adam's bias.
STEPS, SIZE = 1000, 37

torch.set_num_threads(1)


class Points(torch.utils.data.Dataset):
    """Each is the gradient of its batch, whatever the weights are."""

    def __init__(self):
        self.x = torch.randn(STEPS, 2 * SIZE, generator=torch.Generator().manual_seed(3))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i]


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        random = torch.Generator().manual_seed(4)
        # Larger than an update, whose own rounding would count otherwise: the config has alpha and betas as float32.
        self.a = torch.nn.Parameter(1 + torch.rand(SIZE, generator=random))
        self.b = torch.nn.Parameter(-1 - torch.rand(SIZE, generator=random))

    def forward(self, x):
        return (torch.cat([self.a, self.b]) * x.mean(0)).sum()

    def values(self):
        return torch.cat([self.a, self.b]).detach().numpy().copy()


def line_job(make, schedule=None, every=None, **more):
    """The job of what make(model) and schedule(optimizer) make, on a model of its own."""
    model = Line()
    optimizer = make(model)
    if schedule is not None:
        more.update(scheduler=schedule(optimizer), scheduler_steps=every or 1)
    return model, weir.torch.job(optimizer, **{"batch_size": 1, "epochs": 1, "model": model, **more})


class Lion(torch.optim.Optimizer):
    """As published (Chen et al. 2023), which torch does not have."""

    def __init__(self, parameters, lr, betas, weight_decay):
        super().__init__(parameters, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                (beta1, beta2), lr = group["betas"], group["lr"]
                update = m.mul(beta1).add_(p.grad, alpha=1 - beta1).sign_()
                p.sub_(update.mul_(lr).add_(p, alpha=lr * group["weight_decay"]))
                m.mul_(beta2).add_(p.grad, alpha=1 - beta2)


def both(make, schedule=None, every=None, job=None):
    """The weights after each step, of a job and of torch. job: its config, where it is not made of torch's optimizer."""
    ours, theirs = [], []
    data = Points()
    model, job = line_job(make, schedule, every) if job is None else (Line(), job)
    opt = weir.torch.Optimizer(model, job, data)
    for x in opt.loader():
        ours.append(model.values())
        opt.zero_grad()
        model(x).backward()
        opt.step()
    ours = [*ours[1:], model.values()]
    model = Line()
    optimizer = make(model)
    scheduler = schedule and schedule(optimizer)
    for t, i in enumerate(weir.ExampleOrder(len(data), 1)(0, STEPS), 1):
        optimizer.zero_grad()
        model(data[int(i)][None]).backward()
        optimizer.step()
        if scheduler is not None and t % (every or 1) == 0:
            scheduler.step()
        theirs.append(model.values())
    return np.stack(ours), np.stack(theirs)


class BesideTorch(unittest.TestCase):
    """Each step may round once more or less than torch's, which takes fused multiply-adds where the machine has them."""

    def check(self, make, schedule=None, every=None, job=None):
        ours, theirs = both(make, schedule, every, job)
        self.assertEqual(ours.shape, (STEPS, 2 * SIZE))
        # Of the largest value that the weight has had, since it may come near 0 afterwards.
        unit = np.spacing(np.maximum.accumulate(np.abs([Line().values(), *theirs])))[1:]
        # One more, since the first steps may have no rounding that cancels another.
        apart = np.abs(ours.astype(np.float64) - theirs) / unit / np.arange(2, STEPS + 2)[:, None]
        self.assertLessEqual(apart.max(), 1, "ULP a step")

    def check_bits(self, make):
        ours, theirs = both(make)
        self.assertTrue(np.array_equal(ours, theirs))

    def test_the_same_bits(self):
        """Where no product is rounded that torch fuses with a sum."""
        for make in (lambda m: SGD(m.parameters(), lr=2**-4),
                     lambda m: SGD(m.parameters(), lr=2**-4, momentum=0.9),
                     lambda m: SGD(m.parameters(), lr=2**-4, momentum=0.5, nesterov=True)):
            self.check_bits(make)

    def test_sgd(self):
        self.check(lambda m: SGD(m.parameters(), lr=0.07))
        self.check(lambda m: SGD(m.parameters(), lr=0.07, weight_decay=0.03, dampening=0.5))

    def test_momentum(self):
        self.check(lambda m: SGD(m.parameters(), lr=0.03, momentum=0.9))
        self.check(lambda m: SGD(m.parameters(), lr=0.03, momentum=0.9, nesterov=True))
        self.check(lambda m: SGD(m.parameters(), lr=0.003, momentum=0.9, weight_decay=0.03))
        self.check(lambda m: SGD(m.parameters(), lr=0.003, momentum=0.9, nesterov=True, weight_decay=0.03))

    def test_adam(self):
        self.check(lambda m: Adam(m.parameters(), lr=0.003, betas=(0.8, 0.97), eps=1e-3))
        self.check(lambda m: Adam(m.parameters(), foreach=True))
        self.check(lambda m: Adam(m.parameters(), lr=0.003, eps=1e-3, weight_decay=0.03))

    def test_amsgrad(self):
        for make in (lambda m: Adam(m.parameters(), lr=0.003, eps=1e-3, amsgrad=True, weight_decay=0.03),
                     lambda m: AdamW(m.parameters(), lr=0.003, betas=(0.8, 0.9), eps=1e-3, amsgrad=True)):
            self.check(make)
            self.assertIs(line_job(make)[1]["optimizer"]["amsgrad"], True)
        # So that a plain Adam would show.
        self.assertFalse(np.array_equal(both(make)[0], both(lambda m: AdamW(m.parameters(), lr=0.003, betas=(0.8, 0.9), eps=1e-3))[0]))

    def test_adamw(self):
        self.check(lambda m: AdamW(m.parameters(), lr=0.003, eps=1e-3))
        self.assertEqual(line_job(lambda m: AdamW(m.parameters()))[1]["optimizer"]["weight_decay"], 0.01)

    def test_adagrad(self):
        self.check(lambda m: Adagrad(m.parameters(), lr=0.05))
        self.check(lambda m: Adagrad(m.parameters(), lr=0.05, eps=0.1))
        self.check(lambda m: Adagrad(m.parameters(), lr=0.05, weight_decay=0.03))

    def test_rmsprop(self):
        self.check(lambda m: RMSprop(m.parameters(), lr=0.003, alpha=0.95, eps=0.01))
        self.check(lambda m: RMSprop(m.parameters(), lr=0.003))
        self.check(lambda m: RMSprop(m.parameters(), lr=0.003, eps=0.01, weight_decay=0.03))

    def test_lion(self):
        rule = {"type": "lion", "learning_rate": 0.003, "beta1": 0.8, "beta2": 0.9, "weight_decay": 0.1}
        self.check(lambda m: Lion(m.parameters(), 0.003, (0.8, 0.9), 0.1),
                   job={"data": {"batch_size": 1}, "train": {"epochs": 1}, "optimizer": rule})

    def test_groups(self):
        def make(model):
            return AdamW([{"params": [model.a], "weight_decay": 0.0, "lr": 0.02}, {"params": [model.b]}], lr=0.003, weight_decay=0.1)

        self.check(make)
        rule = line_job(make)[1]["optimizer"]
        self.assertEqual(rule["groups"], [{"match": "b", "learning_rate_factor": 0.003 / 0.02, "weight_decay": 0.1}])
        self.check(lambda m: SGD([{"params": [m.a], "lr": 0.0}, {"params": [m.b]}], lr=0.07))

    def test_groups_of_a_coupled_decay(self):
        def groups(m):
            return [{"params": [m.a], "weight_decay": 0.0}, {"params": [m.b]}]

        for make in (lambda m: Adam(groups(m), lr=0.003, eps=1e-3, weight_decay=0.03),
                     lambda m: SGD(groups(m), lr=0.003, momentum=0.9, weight_decay=0.03),
                     lambda m: RMSprop(groups(m), lr=0.003, eps=0.01, weight_decay=0.03)):
            self.check(make)
            rule = line_job(make)[1]["optimizer"]
            self.assertEqual((rule.get("l2"), rule["groups"]), (None, [{"match": "b", "l2": 0.03}]))
        # So that a decay of all, or of none, would show.
        for decay in (0.0, 0.03):
            self.assertFalse(np.array_equal(both(make)[0], both(lambda m, decay=decay: RMSprop(m.parameters(), lr=0.003, eps=0.01,
                                                                                              weight_decay=decay))[0]))

    def test_a_parameter_in_no_group(self):
        self.check(lambda m: SGD([m.b], lr=0.07))

    def test_schedules(self):
        for schedule, every in (
                (lambda o: lr_scheduler.StepLR(o, 70, 0.5), 1),
                (lambda o: lr_scheduler.StepLR(o, 3, 0.3), 50),
                (lambda o: lr_scheduler.ExponentialLR(o, 0.99), 1),
                (lambda o: lr_scheduler.ExponentialLR(o, 0.7), 40),
                (lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS), 1),
                (lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS, eta_min=0.01), 1),
                (lambda o: lr_scheduler.LinearLR(o, 1 / 150, total_iters=149), 1),
                (lambda o: lr_scheduler.LinearLR(o, 1, 0.1, total_iters=STEPS - 100), 1),
                (lambda o: lr_scheduler.PolynomialLR(o, STEPS, 2), 1),
                (lambda o: lr_scheduler.PolynomialLR(o, STEPS - 100, 0.9), 1),
                (lambda o: lr_scheduler.MultiStepLR(o, [30, 300], 0.3), 1),
                (lambda o: lr_scheduler.MultiStepLR(o, [3, 5]), 50),
                (lambda o: lr_scheduler.OneCycleLR(o, 0.07, STEPS, cycle_momentum=False), 1),
                (lambda o: lr_scheduler.OneCycleLR(o, 0.05, epochs=4, steps_per_epoch=STEPS // 4, pct_start=0.25, div_factor=5,
                                                   final_div_factor=10, cycle_momentum=False), 1)):
            with self.subTest(schedule=line_job(lambda m: SGD(m.parameters(), lr=0.07), schedule, every)[1]["optimizer"]["schedule"]):
                self.check(lambda m: SGD(m.parameters(), lr=0.07), schedule, every)

    def test_warm_up_and_then(self):
        for after in (lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS - 30, eta_min=0.01), lambda o: lr_scheduler.StepLR(o, 90, 0.2),
                      lambda o: lr_scheduler.LinearLR(o, 1, 0.1, total_iters=200), lambda o: lr_scheduler.PolynomialLR(o, STEPS - 30, 2),
                      lambda o: lr_scheduler.MultiStepLR(o, [40, 200]), lambda o: lr_scheduler.ExponentialLR(o, 0.99)):
            self.check(lambda m: SGD(m.parameters(), lr=0.07), lambda o, after=after: lr_scheduler.SequentialLR(
                o, [lr_scheduler.LinearLR(o, 1 / 30, total_iters=29), after(o)], milestones=[30]))

    def test_a_schedule_of_groups(self):
        self.check(lambda m: SGD([{"params": [m.a]}, {"params": [m.b], "lr": 0.2}], lr=0.07), lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS))


class Refused(unittest.TestCase):
    def refused(self, words, make, *arguments, **more):
        with self.assertRaises(weir.ConfigError) as caught:
            line_job(make, *arguments, **more)
        for word in (words,) if isinstance(words, str) else words:
            self.assertIn(word, str(caught.exception))

    def test_rules(self):
        for words, make in (
                ("Adamax, whose rule the servers do not have; allowed are Adagrad, Adam", lambda m: Adamax(m.parameters())),
                ("classes derived from them", lambda m: type("Mine", (SGD,), {})(m.parameters(), lr=1)),
                ("maximize=True", lambda m: AdamW(m.parameters(), maximize=True)),
                ("dampening=0.5", lambda m: SGD(m.parameters(), lr=1, momentum=0.9, dampening=0.5)),
                ("centered=True", lambda m: RMSprop(m.parameters(), centered=True)),
                ("with SGD alone", lambda m: RMSprop(m.parameters(), momentum=0.5)),
                ("lr_decay=0.1", lambda m: Adagrad(m.parameters(), lr_decay=0.1)),
                ("initial_accumulator_value=1", lambda m: Adagrad(m.parameters(), initial_accumulator_value=1)),
                ("amsgrad=True in one of its parameter groups", lambda m: Adam([{"params": [m.a]}, {"params": [m.b], "amsgrad": True}])),
                ("momentum=0.5 in one of its parameter groups (number 1), and 0.9", lambda m: SGD(
                    [{"params": [m.a]}, {"params": [m.b], "momentum": 0.5}], lr=1, momentum=0.9)),
                ("optimizer.epsilon: must be a number in (0, 1], got 0.0", lambda m: Adam(m.parameters(), eps=0)),
                ("of shape (3,) that is none of the model's", lambda m: SGD([m.a, torch.nn.Parameter(torch.zeros(3))], lr=1))):
            with self.subTest(words):
                self.refused(words, make)
        with self.assertRaisesRegex(weir.ConfigError, "optimizer must be one of torch.optim's.*got generator"):
            weir.torch.job(Line().parameters(), batch_size=1, epochs=1)

    def test_an_optimizer_that_has_stepped(self):
        for make in (lambda m: Adam(m.parameters()), lambda m: SGD(m.parameters(), lr=1, momentum=0.9)):
            def stepped(model, make=make):
                optimizer = make(model)
                model(torch.ones(1, 2 * SIZE)).backward()
                optimizer.step()
                return optimizer
            self.refused("make the job from a new optimizer", stepped)

    def test_names(self):
        groups = lambda m: SGD([{"params": [m.a]}, {"params": [m.b], "lr": 2}], lr=1)
        self.refused("give weir.torch.job(..., model=model)", groups, model=None)
        model = torch.nn.ModuleDict({"*": torch.nn.Linear(2, 2), "x": torch.nn.Linear(2, 2)})
        optimizer = SGD([{"params": model["x"].parameters()}, {"params": model["*"].parameters(), "lr": 2}], lr=1)
        with self.assertRaisesRegex(weir.ConfigError, r"'\*.weight' has settings of its own.*globs"):
            weir.torch.job(optimizer, model=model, batch_size=1, epochs=1)

    def test_schedulers(self):
        one = lambda m: SGD(m.parameters(), lr=1)
        two = lambda m: SGD([{"params": [m.a]}, {"params": [m.b], "lr": 2}], lr=1)

        def sequential(first, milestone):
            return lambda o: lr_scheduler.SequentialLR(o, [first(o), lr_scheduler.StepLR(o, 5)], milestones=[milestone])

        def moved(optimizer):
            scheduler = lr_scheduler.StepLR(optimizer, 5)
            optimizer.step()
            scheduler.step()
            return scheduler

        warm_up = lambda o: lr_scheduler.LinearLR(o, 1 / 4, total_iters=3)
        for words, make, schedule, every in (
                ("LambdaLR, which the servers do not have; allowed are StepLR", one, lambda o: lr_scheduler.LambdaLR(o, lambda t: 1), 1),
                ("optimizer.schedule.milestones[1]: must be above", one, lambda o: lr_scheduler.MultiStepLR(o, [3, 3]), 1),
                ("cycle_momentum=True", lambda m: Adam(m.parameters()), lambda o: lr_scheduler.OneCycleLR(o, 1, 9), 1),
                ("three_phase=True", one, lambda o: lr_scheduler.OneCycleLR(o, 1, 9, three_phase=True, cycle_momentum=False), 1),
                ("anneal_strategy='linear'", one, lambda o: lr_scheduler.OneCycleLR(o, 1, 9, anneal_strategy="linear", cycle_momentum=False), 1),
                ("and the optimizer has OneCycleLR, too", one, lambda o: lr_scheduler.SequentialLR(
                    o, [warm_up(o), lr_scheduler.OneCycleLR(o, 1, 9, cycle_momentum=False)], milestones=[4]), 1),
                ("start_factor=0.25 after the warm-up", one, lambda o: lr_scheduler.SequentialLR(o, [warm_up(o), warm_up(o)], milestones=[4]), 1),
                ("such as start_factor=1/6 here", one, lambda o: lr_scheduler.LinearLR(o), 1),
                ("scheduler_steps=7 has one rate for 7 steps", one, lambda o: lr_scheduler.CosineAnnealingLR(o, 9), 7),
                ("eta_min=0.1 for parameter groups of several rates", two, lambda o: lr_scheduler.CosineAnnealingLR(o, 9, eta_min=0.1), 1),
                ("allowed is milestones=[4]", one, sequential(warm_up, 3), 1),
                ("SequentialLR of StepLR, StepLR", one, sequential(lambda o: lr_scheduler.StepLR(o, 2), 3), 1),
                ("got 1.5", one, lambda o: lr_scheduler.StepLR(o, 5), 1.5),
                ("last_epoch is 1", one, moved, 1),
                ("of the optimizer that is given; got StepLR", one, lambda o: lr_scheduler.StepLR(SGD(Line().parameters(), lr=1), 5), 1)):
            with self.subTest(words):
                self.refused(words, make, schedule, every)
        self.refused("scheduler_steps=2 is given without", one, scheduler_steps=2)

        def forgotten(model):
            optimizer = one(model)
            warm_up(optimizer)
            return optimizer

        self.refused("has changed the rate from 1 to 0.25; give job(..., scheduler=", forgotten)

    def test_fields(self):
        one = lambda m: SGD(m.parameters(), lr=1)
        self.refused("one of epochs, examples and steps; got epochs=1 and steps=5", one, steps=5)
        self.refused("got none of them", one, epochs=None)
        self.assertEqual(line_job(one, epochs=None, steps=5)[1]["train"], {"steps": 5})
        self.refused("consistency.staleness", one, mode="bounded")
        self.refused("consistency.mode", one, mode="synchronous")
        self.refused("data.batch_size is given as 3, and weir.torch.job() makes it 1", one, data={"batch_size": 3})
        self.refused("checkpoint.directroy", one, checkpoint={"directroy": "x"})
        _, job = line_job(one, mode="bounded", staleness=2, seed=7, train={"clip_norm": 1.0})
        self.assertEqual(job, {"data": {"batch_size": 1}, "consistency": {"mode": "bounded", "staleness": 2}, "seed": 7,
                               "optimizer": {"type": "sgd", "learning_rate": 1.0}, "train": {"epochs": 1, "clip_norm": 1.0}})

    def test_another_model(self):
        model = Line()
        job = weir.torch.job(SGD([model.a], lr=1), batch_size=1, epochs=1)
        with self.assertRaisesRegex(weir.ConfigError, "^b requires a gradient, but it is in no parameter group"):
            weir.torch.Optimizer(model, job, Points())
        with self.assertRaisesRegex(weir.ConfigError, "a requires a gradient, but"):
            weir.torch.Optimizer(Line(), job, Points())
        _, job = line_job(lambda m: SGD(m.parameters(), lr=1))
        with self.assertRaisesRegex(weir.ConfigError, r"parameter of shape \(37,\) that is none of this model's"):
            weir.torch.Optimizer(model, job, Points())


class InACluster(unittest.TestCase):
    """The servers read the file that the program has written."""

    def setUp(self):
        temporary = support.folder()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.file = self.folder / "job.json"
        self.program = [support.ROOT / "tests/python/train_job.py", self.folder]

    def test_the_file(self):
        """As many workers as there are train what one process trains."""
        done = support.run([support.PYTHON, *map(str, self.program), "--write"])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(self.file.read_text())["optimizer"], {"type": "momentum", "learning_rate": 0.05, "momentum": 0.9})
        done = support.run(support.up(self.file, self.program, "--workers=2", "--ps=2"))
        self.assertEqual(done.returncode, 0, done.stderr)
        models = [torch.load(path) for path in self.folder.glob("model-*.pt")]
        self.assertEqual(len(models), 2)
        for state in models:
            for name, value in serial_run().items():
                self.assertTrue(torch.equal(state[name], value), name)

    def test_another_file(self):
        done = support.run([support.PYTHON, *map(str, self.program), "--write"])
        self.assertEqual(done.returncode, 0, done.stderr)
        fields = json.loads(self.file.read_text())
        fields["optimizer"]["momentum"] = 0.8
        self.file.write_text(json.dumps(fields))
        done = support.run(support.up(self.file, self.program, "--workers=2", "--ps=1"))
        self.assertEqual(done.returncode, 78, done.stderr)
        self.assertRegex(done.stderr, r"the config of worker:\d differs from that of ps:0: optimizer.momentum")

    def test_a_folder_in_its_place(self):
        _, job = line_job(lambda m: SGD(m.parameters(), lr=1))
        self.file.mkdir()
        with self.assertRaisesRegex(OSError, "job.json"):
            job.write(self.file)
        self.assertEqual(list(self.folder.iterdir()), [self.file])

    def test_writing_there(self):
        self.file.write_text("{}")
        done = support.run(support.up(self.file, [*self.program, "--write"], "--workers=1", "--ps=1"))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("job.json is not written, since this process is a task of a cluster", done.stderr)
        self.assertEqual(self.file.read_text(), "{}")


if __name__ == "__main__":
    unittest.main()
