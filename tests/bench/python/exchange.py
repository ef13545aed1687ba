"""A worker's step without any computing, for python_bench.py: one gradient goes to the servers, and the new weights are where the
worker reads them.

    numpy: the gradient is in Client.new_gradient(), and the weights are read in a view, so that neither is copied
    tensors: both are tensors of the program, for Client.push_pull()
    optimizer: both are those of a parameter of weir.torch.Optimizer
"""
import argparse

import numpy as np
import weir

from turns import Turns

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("way", choices=["numpy", "tensors", "optimizer"])
for name in ["elements", "examples"]:
    parser.add_argument(f"--{name}", type=int, required=True)
for name in ["job", "turns"]:
    parser.add_argument(f"--{name}", required=True)
args = parser.parse_args()
turns = Turns(args.turns)


def next_work(client, pushed):
    if not pushed.applied:
        raise weir.Error(f"an update was not applied: {pushed.reason}")
    return client.next_work()


def numpy():
    with weir.Client(args.job, {"w": weir.Tensor((args.elements,))}, args.examples) as client:
        gradient = client.new_gradient()
        gradient.flat[:] = np.random.default_rng(1).standard_normal(args.elements, dtype=np.float32)
        work = client.next_work()
        view = client.view(work.clock).result()
        while True:
            turns.step()
            pushed, view = client.push_pull(work, view, gradient).result()
            work = next_work(client, pushed)


def tensors():
    import torch
    torch.manual_seed(1)
    gradient, weights = {"w": torch.randn(args.elements)}, {"w": torch.zeros(args.elements)}
    with weir.Client(args.job, {"w": weir.Tensor((args.elements,))}, args.examples) as client:
        work = client.next_work()
        base = client.pull(work.clock, weights).result()
        while True:
            turns.step()
            pushed, base = client.push_pull(work, base, gradient, weights).result()
            work = next_work(client, pushed)


def optimizer():
    import torch
    import weir.torch
    torch.manual_seed(1)
    model = torch.nn.Module()
    model.w = torch.nn.Parameter(torch.zeros(args.elements))
    model.w.grad = torch.randn(args.elements)
    opt = weir.torch.Optimizer(model, args.job, range(args.examples))
    for _ in opt.loader():
        turns.step()
        opt.step()


{"numpy": numpy, "tensors": tensors, "optimizer": optimizer}[args.way]()
