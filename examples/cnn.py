#!/usr/bin/env python3
"""A small convolutional network on images in the format of MNIST, with PyTorch.

    python examples/cnn.py                                                # servers in this process
    weir up --ps=2 --workers=2 examples/cnn.json -- python examples/cnn.py
"""
import argparse
import gzip
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
import weir.torch
from torch import nn

JOB = pathlib.Path(__file__).with_suffix(".json")


def read_idx(path):
    """The array of an IDX file."""
    with gzip.open(path) as file:
        data = file.read()
    shape = np.frombuffer(data, ">i4", data[3], 4)
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape).copy())


def data_set(folder, part, most):
    images = read_idx(folder / f"{part}-images-idx3-ubyte.gz")[:most, None].float() / 255
    return torch.utils.data.TensorDataset(images, read_idx(folder / f"{part}-labels-idx1-ubyte.gz")[:most].long())


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.25), nn.Linear(32 * 7 * 7, 10))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--most", type=int, default=60000, help="examples to use")
    parser.add_argument("--num_workers", type=int, default=0, help="processes that load data")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = network()

    train = data_set(args.data, "train", args.most)
    opt = weir.torch.Optimizer(model, JOB, train)
    for x, y in opt.loader(num_workers=args.num_workers):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step(loss=loss)

    model.eval()
    x, y = data_set(args.data, "t10k", args.most)[:]
    with torch.no_grad():
        print(f"test accuracy: {(model(x).argmax(1) == y).float().mean():.3f}")


if __name__ == "__main__":
    main()
