"""The training loop of an example, for python_bench.py: as a worker of a job, or in plain PyTorch with the optimizer that the job's
config describes."""
import argparse
import fnmatch
import json
import math
import pathlib
import sys

import torch
import torch.nn.functional as F

from turns import Turns

EXAMPLES = pathlib.Path(__file__).resolve().parents[3] / "examples"


def transformer():
    from transformer import Transformer, Windows
    text = (EXAMPLES / "coriolanus.txt").read_text(encoding="utf-8")
    alphabet = sorted(set(text))
    return (Transformer(len(alphabet)), Windows(torch.tensor([alphabet.index(c) for c in text])),
            lambda model, x, y: F.cross_entropy(model(x).flatten(0, 1), y.flatten()))


def resnet():
    from cnn import data_set
    from resnet import ResNet
    return ResNet(), data_set(args.data, "train", args.most), lambda model, x, y: F.cross_entropy(model(x), y)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("example", choices=["transformer", "resnet"])
parser.add_argument("way", choices=["weir", "torch"])
parser.add_argument("--most", type=int, required=True, help="images to use")
parser.add_argument("--device", default="cpu")
for name in ["data", "job", "turns"]:
    parser.add_argument(f"--{name}", required=True)
args = parser.parse_args()
args.data = pathlib.Path(args.data)
turns = Turns(args.turns)
sys.path.insert(0, str(EXAMPLES))
torch.manual_seed(0)
torch.set_num_threads(1)
model, train, loss_of = {"transformer": transformer, "resnet": resnet}[args.example]()
model.to(args.device)


def weir_loop():
    import weir.torch
    opt = weir.torch.Optimizer(model, args.job, train)
    for x, y in opt.loader():
        turns.step()
        opt.zero_grad()
        loss = loss_of(model, x.to(args.device), y.to(args.device))
        loss.backward()
        opt.step(loss=loss)


def torch_loop():
    with open(args.job, encoding="utf-8") as file:
        job = json.load(file)
    optimizer = job["optimizer"]
    groups = [{"params": [], **group} for group in optimizer["groups"]] + [{"params": [], "match": "*"}]
    for name, p in model.named_parameters():
        next(group for group in groups if fnmatch.fnmatch(name, group["match"]))["params"].append(p)
    for group in groups:
        group.setdefault("weight_decay", optimizer["weight_decay"])
    opt = {"adamw": lambda: torch.optim.AdamW(groups, lr=optimizer["learning_rate"]),
           "nesterov": lambda: torch.optim.SGD(groups, lr=optimizer["learning_rate"], momentum=0.9, nesterov=True),
           }[optimizer["type"]]()
    warmup, steps = optimizer["schedule"]["warmup_steps"], job["train"]["examples"] // job["data"]["batch_size"]
    schedule = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda step: min((step + 1) / warmup, (1 + math.cos(math.pi * step / steps)) / 2))
    clip_norm = job["train"].get("clip_norm")
    total = 0.0
    while True:
        for x, y in torch.utils.data.DataLoader(train, job["data"]["batch_size"], shuffle=True):
            turns.step()
            opt.zero_grad(set_to_none=True)  # the default since PyTorch 2
            loss = loss_of(model, x.to(args.device), y.to(args.device))
            loss.backward()
            if clip_norm:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
            opt.step()
            schedule.step()
            total += float(loss)  # as a program that shows its loss


{"weir": weir_loop, "torch": torch_loop}[args.way]()
