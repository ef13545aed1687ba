"""The training step that the programs on PyTorch share."""
import argparse
import itertools
import json
import time

import torch

INPUTS, HIDDEN, CLASSES = 784, 128, 10


def arguments(description, *own):
    parser = argparse.ArgumentParser(description=description)
    for name in ["mode", "data", *own]:
        parser.add_argument(f"--{name}", required=True)
    for name in ["rank", "port", "servers", "workers", "steps", "warmup", "batch"]:
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    return parser.parse_args()


def new_model():
    return torch.nn.Sequential(torch.nn.Linear(INPUTS, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, CLASSES))


def examples(folder):
    """All images and labels."""
    with open(f"{folder}/images", "rb") as file:
        images = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).view(-1, INPUTS).float() / 255
    with open(f"{folder}/labels", "rb") as file:
        labels = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    return images, labels


def batches(folder, batch, seed):
    """Images and labels of one batch after another, in random order, without end."""
    images, labels = examples(folder)
    random = torch.Generator().manual_seed(seed)
    for _ in itertools.count():
        for indexes in torch.randperm(len(labels), generator=random).split(batch):
            yield images[indexes], labels[indexes]


def step_of(model, args):
    """A training step of the model by torch.optim, on one batch of this rank after another; returns the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=args.rate)
    data = batches(args.data, args.batch, args.rank)

    def step():
        images, labels = next(data)
        optimizer.zero_grad(set_to_none=True)  # the default since PyTorch 2
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def measure(step, steps, warmup, barrier):
    """Runs step(), which returns the loss, and prints the result."""
    for _ in range(warmup):
        step()
    barrier()
    start = time.monotonic()
    for _ in range(steps):
        loss = step()
    print(json.dumps({"steps": steps, "seconds": time.monotonic() - start, "loss": float(loss)}), flush=True)
