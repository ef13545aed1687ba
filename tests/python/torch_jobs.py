"""What the tests of weir.torch share: jobs that train the model of train.py, what a serial loop makes of it, and runs of real
processes."""
import collections
import pathlib

import support
import torch
import torch.nn.functional as F
import train
import weir

TRAIN = support.ROOT / "tests/python/train.py"
BATCH, PARTS, EPOCHS, SEED = 8, 3, 4, 9
RATE, MOMENTUM = 0.05, 0.9
STEPS = EPOCHS * train.EXAMPLES // (BATCH * PARTS)

torch.set_num_threads(1)


def job(**more):
    fields = {"seed": SEED, "data": {"batch_size": BATCH}, "train": {"epochs": EPOCHS},
              "consistency": {"mode": "sync", "parts": PARTS}, "server": {"min_shard_kib": 0},
              "optimizer": {"type": "momentum", "learning_rate": RATE, "momentum": MOMENTUM}}
    return {**fields, **more}


def gradient(model, data, indices, batch=None):
    if batch is not None:
        torch.manual_seed((SEED + 0x9E3779B97F4A7C15 * (batch + 1)) % 2**63)
    model.zero_grad()
    F.cross_entropy(model(data.x[indices]), data.y[indices]).backward()
    return [p.grad.clone() for p in model.parameters()]


def serial_run(begin=None, weigh=False, **kind):
    """The weights that steps over the same parts make, one after another: the mean of the parts in their order, and then the
    published formula of momentum. Buffers are the mean of what the parts leave, each of which begins with those of the
    step. begin: the model with the initial values. weigh: the parts have train.weight_of() in the mean."""
    data, model = train.Examples(), begin or train.make_model(**kind)
    order = weir.ExampleOrder(len(data), SEED)
    speeds = [torch.zeros_like(p) for p in model.parameters()]
    for step in range(STEPS):
        mean, before = None, [s.clone() for s in model.buffers()]
        batches = [torch.from_numpy(order((step * PARTS + part) * BATCH, BATCH)).long() for part in range(PARTS)]
        weights = [float(train.weight_of(data.y[indices])) if weigh else 1.0 for indices in batches]
        for part, indices in enumerate(batches):
            batch = step * PARTS + part
            share = torch.tensor(weights[part] / sum(weights))
            for s, b in zip(model.buffers(), before):
                s.copy_(b)
            terms = [share * t for t in [*gradient(model, data, indices, batch), *(s.float() for s in model.buffers())]]
            mean = terms if mean is None else [m + t for m, t in zip(mean, terms)]
        with torch.no_grad():
            for p, v, g in zip(model.parameters(), speeds, mean):
                v.mul_(MOMENTUM).add_(g)
                p.sub_(RATE * v)
            for s, m in zip(model.buffers(), mean[len(speeds):]):
                s.copy_(m if s.is_floating_point() else m.round())
    return model.state_dict()


def serial_rounds(local_steps, make_inner=train.make_inner, clip=None, parts=PARTS, epochs=EPOCHS, keeps=False, **kind):
    """As serial_run(), where each part is a round of local steps, whose inner optimizer begins anew or, with `keeps`, goes on from the part's
    round before. clip: changes the gradients of each of these."""
    data, model = train.Examples(), train.make_model(**kind)
    inners = [make_inner(model) for _ in range(parts)]
    order = weir.ExampleOrder(len(data), SEED)
    speeds = [torch.zeros_like(p) for p in model.parameters()]
    for step in range(epochs * train.EXAMPLES // (BATCH * parts * local_steps)):
        mean, base, before = None, [p.detach().clone() for p in model.parameters()], [s.clone() for s in model.buffers()]
        for part in range(parts):
            with torch.no_grad():
                for t, value in zip([*model.parameters(), *model.buffers()], [*base, *before]):
                    t.copy_(value)
            inner = inners[part] if keeps else make_inner(model)
            for batch in range((step * parts + part) * local_steps, (step * parts + part + 1) * local_steps):
                gradient(model, data, torch.from_numpy(order(batch * BATCH, BATCH)).long(), batch)
                if clip is not None:
                    clip(model)
                inner.step()
            with torch.no_grad():
                terms = [torch.tensor(1 / parts) * t for t in [*(b - p for b, p in zip(base, model.parameters())),
                                                               *(s.float() for s in model.buffers())]]
                mean = terms if mean is None else [m + t for m, t in zip(mean, terms)]
        with torch.no_grad():
            for p, b, v, g in zip(model.parameters(), base, speeds, mean):
                v.mul_(MOMENTUM).add_(g)
                p.copy_(b - RATE * v)
            for s, m in zip(model.buffers(), mean[len(speeds):]):
                s.copy_(m if s.is_floating_point() else m.round())
    return model.state_dict()


class Run:
    """The folder of a job, its runs, and what they have left there."""

    def __init__(self, test, kind=None, **fields):
        """kind: arguments of make_model()."""
        temporary = support.folder()
        test.addCleanup(temporary.cleanup)
        self.test, self.folder, self.kind = test, pathlib.Path(temporary.name), kind or {}
        self.job = support.write_job(self.folder / "job.json", **job(**fields))

    def up(self, *flags, program=()):
        kind = [f"--{name}" if value is True else f"--{name}={value}" for name, value in self.kind.items()]
        return support.up(self.job, [TRAIN, self.job, self.folder, *kind, *program], *flags)

    def models(self):
        return [torch.load(path) for path in self.folder.glob("model-*.pt")]

    def seen(self):
        return collections.Counter(
            int(n) for path in self.folder.glob("seen-*") for n in path.read_text().split())

    def check(self, done, models, begin=None, weigh=False, expected=None):
        """expected: the weights, by default those of serial_run()."""
        self.test.assertEqual(done.returncode, 0, done.stderr)
        found, expected = self.models(), expected or serial_run(begin, weigh, **self.kind)
        self.test.assertIn(len(found), models if isinstance(models, tuple) else (models,))
        for state in found:
            for name, value in expected.items():
                self.test.assertTrue(torch.equal(state[name], value), f"{name} has other bits")

    def made_here(self):
        """The batches that the loader's processes had not made ahead."""
        return sum(int(path.read_text()) for path in self.folder.glob("here-*"))

    def check_once(self):
        self.test.assertEqual(set(self.seen().values()), {EPOCHS})
        self.test.assertEqual(len(self.seen()), train.EXAMPLES)
