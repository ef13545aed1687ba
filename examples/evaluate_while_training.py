#!/usr/bin/env python3
"""Evaluates a PyTorch model on held-out examples while it trains: opt.snapshot().

    python examples/evaluate_while_training.py
"""
import torch
import torch.nn.functional as F
import weir.torch
from torch import nn

JOB = {
    "name": "spirals",
    "data": {"batch_size": 32},
    "train": {"epochs": 60},
    "consistency": {"mode": "async"},
    "optimizer": {"type": "adam", "learning_rate": 0.01},
}


def spirals(n, seed):
    """n points on two spirals, and which of the two each is on."""
    random = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    angle = 1 + 5 * torch.rand(n, generator=random)
    turn = angle + torch.pi * y
    points = torch.stack([turn.cos(), turn.sin()], 1) * angle[:, None] / 6
    return torch.utils.data.TensorDataset(points + 0.02 * torch.randn(n, 2, generator=random), y)


@torch.no_grad()
def accuracy(model, examples):
    model.eval()
    x, y = examples[:]
    right = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return right


def main():
    torch.manual_seed(0)
    train, test = spirals(640, seed=1), spirals(200, seed=2)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))
    opt = weir.torch.Optimizer(model, JOB, train)
    for n, (x, y) in enumerate(opt.loader()):
        if n % 200 == 0 and opt.client.leading:  # of several workers one evaluates
            with opt.snapshot() as version:
                print(f"version {version}: test accuracy {accuracy(model, test):.3f}")
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step(loss=loss)
    print(f"trained: test accuracy {accuracy(model, test):.3f}")


if __name__ == "__main__":
    main()
