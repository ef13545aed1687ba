"""A worker's step of the small MLP, for python_bench.py, in three ways: "hooks": with its utilization, and with looks for evaluations
that the job may ask for; "all": with opt.log() of two values, too; else with nothing of it. One process takes turns in all ways, so
that nothing else differs."""
import argparse
import pathlib
import sys

import torch
import weir.torch

from turns import Turns

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))
import pytorch_step  # noqa: E402, the line before says where it is

RATE = 0.1

parser = argparse.ArgumentParser(description=__doc__)
for name in ["data", "job", "turns"]:
    parser.add_argument(f"--{name}", required=True)
args = parser.parse_args()
turns = Turns(args.turns)
torch.set_num_threads(1)
torch.manual_seed(1)
model = pytorch_step.new_model()
images, labels = pytorch_step.examples(args.data)


def batch(indexes):
    at = torch.tensor(indexes)
    return images[at], labels[at]


def watch(client, watched):
    """Gives the loop what all loops have, or takes it away."""
    client._evaluations.of_epochs = watched
    if watched:
        vars(client).pop("set_computing", None)
    else:
        client.set_computing = lambda computes: None


opt = weir.torch.Optimizer(model, args.job, range(len(labels)), evaluate=lambda model: {"loss": 0.0})
way = None
for x, y in opt.loader(collate_fn=batch):
    turns.step()
    if turns.way != way:
        way = turns.way
        watch(opt.client, way != "")
    opt.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    opt.step(loss=loss)
    if way == "all":
        opt.log(entropy=loss, rate=RATE)
