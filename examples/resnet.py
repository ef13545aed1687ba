#!/usr/bin/env python3
"""A small residual network with BatchNorm, on the images of cnn.py.

    python examples/resnet.py                                                     # servers in this process
    weir up --ps=2 --workers=2 examples/resnet.json -- python examples/resnet.py
"""
import argparse
import pathlib

import torch
import torch.nn.functional as F
import weir.torch
from torch import nn

from cnn import data_set

JOB = pathlib.Path(__file__).with_suffix(".json")


class Block(nn.Module):
    """Two convolutions, the first with a stride, and a way around them."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.around = nn.Identity() if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        return F.relu(self.around(x) + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.blocks(F.relu(self.bn1(self.conv1(x)))).mean((2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--most", type=int, default=60000, help="examples to use")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = ResNet().to(device)

    train = data_set(args.data, "train", args.most)
    opt = weir.torch.Optimizer(model, JOB, train)
    for x, y in opt.loader():
        opt.zero_grad()
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        opt.step(loss=loss)

    model.to("cpu")
    # The model has the job's running statistics, which are merged from all workers. As in plain PyTorch they begin at 0 and 1,
    # and a job of some twenty steps ends before they have come near. So take them anew; after a long job this is not needed.
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.reset_running_stats()
            layer.momentum = None  # the mean over all batches that follow
    x, y = data_set(args.data, "t10k", args.most)[:]
    with torch.no_grad():
        for begin in range(0, min(len(train), 2000), 100):
            model(train[begin:begin + 100][0])
        model.eval()
        print(f"test accuracy: {(model(x).argmax(1) == y).float().mean():.3f}")


if __name__ == "__main__":
    main()
