#!/usr/bin/python3
"""Several losses, and several models, in one job: with one optimizer. Two optimizers at one time are refused."""
import gc
import unittest

import support
import torch
import torch.nn.functional as F
import train
import weir
import weir.torch
from torch_jobs import job

TWO = """
import torch, weir.torch
job, data = {job}, torch.utils.data.TensorDataset(torch.ones(64, 6))
models = torch.nn.Linear(6, 3), torch.nn.Linear(6, 3)
for n in range(3):
    one = weir.torch.Optimizer(models[0], job, data)
    one = None
one = weir.torch.Optimizer(models[0], job, data)
weir.torch.Optimizer(models[1], job, data)
"""


def adversaries():
    """A generator of points, and what tells them from points of the data."""
    torch.manual_seed(2)
    return torch.nn.ModuleDict({"generator": torch.nn.Linear(2, 2), "critic": torch.nn.Sequential(
        torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))})


class SeveralLosses(unittest.TestCase):
    def test_a_gan(self):
        """The program of docs/python.md, beside torch's own optimizers."""
        points = torch.randn(64, 2, generator=torch.Generator().manual_seed(3)) + 4
        ours, theirs = adversaries(), adversaries()

        def losses(model, real):
            generator, critic = model["generator"], model["critic"]
            fake = generator(torch.randn(len(real), 2))
            seen = critic(real), critic(fake.detach())
            critic_loss = F.softplus(-seen[0]).mean() + F.softplus(seen[1]).mean()
            critic_loss.backward()
            generator_loss = F.softplus(-critic(fake)).mean()
            generator_loss.backward(inputs=list(generator.parameters()))
            return critic_loss + generator_loss

        config = job(train={"epochs": 2}, consistency={"mode": "sync", "parts": 1},
                     optimizer={"type": "sgd", "learning_rate": 0.05, "groups": [{"match": "generator.*", "learning_rate_factor": 2}]})
        opt = weir.torch.Optimizer(ours, config, points)
        sgd = torch.optim.SGD([{"params": theirs["critic"].parameters()}, {"params": theirs["generator"].parameters(), "lr": 0.1}], lr=0.05)
        for real in opt.loader():
            state = torch.get_rng_state()
            opt.zero_grad()
            opt.step(loss=losses(ours, real))
            torch.set_rng_state(state)
            sgd.zero_grad()
            losses(theirs, real)
            sgd.step()
        for (name, a), b in zip(ours.named_parameters(), theirs.parameters()):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6, msg=name)


class TwoOptimizers(unittest.TestCase):
    def test_over_one_model(self):
        model, data = train.make_model(), train.Examples()
        first, second = (weir.torch.Optimizer(model, job(), data) for _ in range(2))
        next(loop := first.loader())
        text = "training parameters of this model in its loop: .*give one Optimizer a module that has them all"
        with self.assertRaisesRegex(weir.ConfigError, text):
            next(second.loader())
        with self.assertRaisesRegex(weir.ConfigError, text):
            weir.torch.Optimizer(model, job(), data)
        with self.assertRaisesRegex(weir.Error, "outside the loop .*give one Optimizer a module"):
            second.step()
        loop.close()
        # One job after another.
        for x, y, *_ in (opt := weir.torch.Optimizer(model, job(train={"epochs": 1}), data)).loader():
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()

    def test_of_two_models_are_two_jobs_in_a_process(self):
        loops = [weir.torch.Optimizer(train.make_model(), job(), train.Examples()).loader() for _ in range(2)]
        for loop in loops:
            next(loop)
        for loop in loops:
            loop.close()
        gc.collect()

    def test_of_two_models_under_up(self):
        with support.folder() as folder:
            path = support.write_job(f"{folder}/job.json", **job())
            done = support.run(support.up(path, ["-c", TWO.format(job=repr(path))], "--workers=2"))
            self.assertEqual(done.returncode, 78, done.stderr)
            self.assertIn('File "<string>", line 9, in <module>', done.stderr)
            self.assertIn("this program has another weir.torch.Optimizer for the same worker", done.stderr)


if __name__ == "__main__":
    unittest.main()
