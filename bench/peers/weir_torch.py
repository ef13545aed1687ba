"""weir.torch.Optimizer, for contestants.py: the training step of the other programs on PyTorch, as a worker of `weir up`. It writes its
result to a file in the folder --out, since `weir up` shows nothing of what its workers print."""
import argparse
import contextlib
import os

import torch
import weir.torch

import pytorch_step

parser = argparse.ArgumentParser(description=__doc__)
for name in ["job", "data", "out"]:
    parser.add_argument(f"--{name}", required=True)
for name in ["steps", "warmup"]:
    parser.add_argument(f"--{name}", type=int, required=True)
args = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(1)
model = pytorch_step.new_model()
images, labels = pytorch_step.examples(args.data)
# A batch is made at once, as in the other programs, not one example after the other.
opt = weir.torch.Optimizer(model, args.job, range(len(labels)))
batches = opt.loader(collate_fn=lambda indexes: (images[indexes], labels[indexes]))


def step():
    x, y = next(batches)
    opt.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    return loss.detach()


with open(f"{args.out}/{os.getpid()}", "w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
    # The job begins when all workers are there, and is in sync.
    pytorch_step.measure(step, args.steps, args.warmup, lambda: None)
for _ in batches:
    raise SystemExit("the job has more steps than it was to have")
