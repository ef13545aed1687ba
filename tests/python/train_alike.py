"""A worker whose training set may be a different one from those of the other workers, for the tests; an argument says how."""
import json
import os
import sys

import numpy as np
import torch

import weir.torch

EXAMPLES = 48


class Numbers(torch.utils.data.Dataset):
    """Each example is its number and noise, which `draw` makes."""

    def __init__(self, draw=lambda: 0, add=0):
        self.draw, self.add = draw, add

    def __len__(self):
        return EXAMPLES

    def __getitem__(self, i):
        return torch.tensor([i + self.add, self.draw()], dtype=torch.float32)


class OwnGenerator(Numbers):
    """It begins differently in each process that makes the set."""

    def __init__(self):
        super().__init__()
        self.transforms = [np.random.default_rng()]

    def __getitem__(self, i):
        return torch.tensor([i, self.transforms[0].integers(2)], dtype=torch.float32)


def training_set(kind, rank):
    numbers = Numbers()
    return {
        "same": lambda: torch.utils.data.Subset(numbers, range(24)),
        "augmented": lambda: Numbers(lambda: torch.rand(()).item() + np.random.rand()),
        "own_generator": OwnGenerator,
        "of_the_system": lambda: Numbers(lambda: os.urandom(1)[0]),
        "split": lambda: torch.utils.data.random_split(numbers, [40, 8])[0],
        "shard": lambda: torch.utils.data.Subset(numbers, range(rank, EXAMPLES, 2)),
        "other_values": lambda: Numbers(add=rank),
    }[kind]()


def main():
    job, kind, num_workers = sys.argv[1:]
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    if kind in ("version", "arrays"):
        x = np.arange(EXAMPLES, dtype=np.float32) + (rank if kind == "arrays" else 0)
        with weir.Client(job, {"w": (1,)}, EXAMPLES, train_set=(x, x), code_version=f"v{rank}" if kind == "version" else None) as client:
            for step in client.steps():
                step.push({"w": x[step.examples][:1]})
        return
    model = torch.nn.Linear(2, 1)
    opt = weir.torch.Optimizer(model, job, training_set(kind, rank))
    for x in opt.loader(num_workers=int(num_workers)):
        opt.zero_grad()
        model(x).mean().backward()
        opt.step()


if __name__ == "__main__":
    sys.exit(main())
