#!/usr/bin/env python3
"""A factorization machine on clicks, whose weights are rows of embedding tables: each user, item and hour is a key.

    python examples/clicks.py                                                   # servers in this process
    weir up --ps=2 --workers=2 examples/clicks.json -- python examples/clicks.py
"""
import argparse
import pathlib

import torch
import torch.nn.functional as F
import weir.torch
from torch import nn

JOB = pathlib.Path(__file__).with_suffix(".json")
USERS, ITEMS, HOURS = 400, 200, 24


def clicks(n):
    """What n visitors saw, as keys [n, 3], and whether they clicked; the same for every worker. Users like items that lie in the
    same direction as they do."""
    random = torch.Generator().manual_seed(1)
    user, item, hour = (torch.randint(most, (n,), generator=random) for most in (USERS, ITEMS, HOURS))
    tastes, kinds = (torch.randn(size, 2, generator=random) for size in (USERS, ITEMS))
    score = 3 * (tastes[user] * kinds[item]).sum(1) + (hour > 18) - 0.5
    clicked = (torch.rand(n, generator=random) < score.sigmoid()).float()
    # A key is any number of 64 bits: its upper part says what it is a key of.
    return torch.stack([user, (1 << 56) + item, (2 << 56) + hour], 1), clicked


class FactorizationMachine(nn.Module):
    """Rendle 2010: a bias, a weight for each key, and the dot products of all pairs of the keys' factors."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))
        self.weights = weir.torch.EmbeddingBag("weights")
        self.factors = weir.torch.Embedding("factors")

    def forward(self, keys):
        factors = self.factors(keys)
        pairs = (factors.sum(1)**2 - (factors**2).sum(1)).sum(1) / 2
        return self.bias + self.weights(keys).squeeze(1) + pairs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--most", type=int, default=40000, help="examples to use")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = FactorizationMachine()

    keys, clicked = clicks(args.most)
    n = args.most * 9 // 10
    train, test = torch.utils.data.TensorDataset(keys[:n], clicked[:n]), keys[n:]
    opt = weir.torch.Optimizer(model, JOB, train)
    # The rows that the test looks up come with the trained weights.
    for x, y in opt.loader(final_keys={"weights": test, "factors": test}):
        opt.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(x), y)
        loss.backward()
        opt.step(loss=loss)

    with torch.no_grad():
        print(f"test accuracy: {((model(test) > 0) == (clicked[n:] > 0)).float().mean():.3f}")


if __name__ == "__main__":
    main()
