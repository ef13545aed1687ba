"""A worker that notes the random numbers that each of its batches meets, for the tests."""
import json
import os
import pathlib
import random
import sys

import numpy as np
import torch

import weir.torch

EXAMPLES, BATCH = 64, 4


def draw():
    return [torch.rand(()).item(), np.random.rand(), random.random()]


class Augmented(torch.utils.data.Dataset):
    """Examples with random numbers, as an augmentation draws them."""

    def __len__(self):
        return EXAMPLES

    def __getitem__(self, i):
        return torch.tensor(draw(), dtype=torch.float64)


class Stream(torch.utils.data.IterableDataset):
    def __len__(self):
        return EXAMPLES

    def __iter__(self):
        return (Augmented()[i] for i in range(EXAMPLES))


def train(job, data, num_workers=0):
    """By number of the batch: what its examples drew, and what is drawn in the loop."""
    model = torch.nn.Linear(3, 1)
    opt = weir.torch.Optimizer(model, job, data)
    drawn = {}
    for x in opt.loader(num_workers=num_workers):
        drawn[opt._step.work.batch] = x.tolist(), draw()  # pylint: disable=protected-access
        opt.zero_grad()
        model(x.float()).mean().backward()
        opt.step()
    return drawn


def main():
    job, folder, kind, num_workers = sys.argv[1:]
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    drawn = train(job, Stream() if kind == "stream" else Augmented(), int(num_workers))
    (pathlib.Path(folder) / f"drawn-{os.getpid()}.json").write_text(json.dumps(drawn))


if __name__ == "__main__":
    sys.exit(main())
