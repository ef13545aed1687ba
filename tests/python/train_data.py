"""A worker whose batches are arranged by length, or come from a stream that has shards, for torch_data_test.py."""
import argparse
import json
import os
import pathlib
import random
import signal

import torch
import torch.nn.functional as F
import train

import weir.torch

# Not a whole number of batches: some have examples of two epochs.
EXAMPLES, BATCH, PARTS, EPOCHS, WINDOW = 92, 8, 3, 3, 4


def length(i):
    """Of example i."""
    return i * 37 % 101


class Listed(torch.utils.data.Dataset):
    """x, its class, and its number. x has noise, which the global random numbers make."""

    def __init__(self):
        self.data = train.Examples()

    def __len__(self):
        return EXAMPLES

    def __getitem__(self, i):
        x, y, *_ = self.data[i]
        return x + 0.1 * torch.randn(train.INPUTS), y, i


class Stream(torch.utils.data.IterableDataset):
    """The same one after another; a shard of n has each n-th."""

    def __init__(self, numbers=range(EXAMPLES)):
        self.numbers = numbers

    def __len__(self):
        return len(self.numbers)

    def shard(self, num_shards, index):
        return Stream(self.numbers[index::num_shards])

    def __iter__(self):
        data = Listed()
        return (data[i] for i in self.numbers)


def by_length(indices):
    """Batches of examples that are about as long, in any order."""
    ordered = sorted(indices, key=length)
    batches = [ordered[i:i + BATCH] for i in range(0, len(ordered), BATCH)]
    random.shuffle(batches)
    return batches


def noisy(examples):
    """A collate_fn that draws, too."""
    x, y, numbers = torch.utils.data.default_collate(examples)
    return x * (1 + 0.1 * torch.rand(1)), y, numbers


OPTIONS = {"plain": {}, "stream": {}, "sampler": {"sampler": lambda indices: sorted(indices, key=length), "window": WINDOW},
           "batch_sampler": {"batch_sampler": by_length, "window": WINDOW}}


def run(job, kind, num_workers=0, at_batch=lambda n: None):
    """The trained model, and the batches as (number in the job, its examples)."""
    torch.set_num_threads(1)
    model, batches = train.make_model(), []
    opt = weir.torch.Optimizer(model, job, Stream() if kind == "stream" else Listed(), progress=False)
    for n, (x, y, numbers) in enumerate(opt.loader(num_workers=num_workers, collate_fn=noisy, **OPTIONS[kind])):
        at_batch(n)
        batches.append((opt._step.work.batch, numbers.tolist()))
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
    return model, batches


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("job")
    parser.add_argument("kind", choices=OPTIONS)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--num_workers", type=int, default=0)
    parser.add_argument("--die_at", type=int, default=-1, help="the batch at which one worker kills itself, once")
    args = parser.parse_args()

    def at_batch(n):
        if n == args.die_at and train.once(args.folder / "died"):
            os.kill(os.getpid(), signal.SIGKILL)

    model, batches = run(args.job, args.kind, args.num_workers, at_batch)
    (args.folder / f"batches-{os.getpid()}.json").write_text(json.dumps(batches))
    torch.save(model.state_dict(), args.folder / f"model-{os.getpid()}.pt")


if __name__ == "__main__":
    main()
