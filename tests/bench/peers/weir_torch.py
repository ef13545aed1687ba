"""weir.torch.Optimizer, for contestants.py: the training step of the other programs on PyTorch, as a worker of `weir up`. It writes its
result to a file in the folder --out, since `weir up` shows nothing of what its workers print."""
import argparse
import json
import os
import pathlib
import time

import torch
import weir.torch

import pytorch_step

parser = argparse.ArgumentParser(description=__doc__)
for name in ["job", "data", "out"]:
    parser.add_argument(f"--{name}", required=True)
parser.add_argument("--warmup", type=int, required=True, help="steps that are not measured")
parser.add_argument("--workers", type=int, required=True)
args = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(1)
model = pytorch_step.new_model()
images, labels = pytorch_step.examples(args.data)


def batch(indexes):
    """Makes a batch at once, as the other programs do, not one example after the other."""
    at = torch.tensor(indexes)
    return images[at], labels[at]


opt = weir.torch.Optimizer(model, args.job, range(len(labels)))
batches = opt.loader(collate_fn=batch)

# In async the first worker would train alone while the other one still starts, and could leave it nothing to do.
(pathlib.Path(args.out) / f"{os.getpid()}.ready").touch()
deadline = time.monotonic() + 60
while len(list(pathlib.Path(args.out).glob("*.ready"))) < args.workers:
    if time.monotonic() > deadline:
        raise SystemExit("the other workers have not started for 60 s")
    time.sleep(0.01)

done = 0
for x, y in batches:
    if done == args.warmup:
        start = time.monotonic()
    opt.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    done += 1
if done <= args.warmup:
    raise SystemExit(f"this worker has had {done} steps, and the first {args.warmup} do not count")
with open(f"{args.out}/{os.getpid()}.json", "w", encoding="utf-8") as file:
    json.dump({"steps": done - args.warmup, "seconds": time.monotonic() - start, "loss": float(loss)}, file)
