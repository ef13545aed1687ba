"""The training step of the other programs on PyTorch without any exchange, for contestants.py: what is left to a system whose exchange
would take no time. Each process trains a model of its own with torch.optim.SGD, which the others have on servers or on each worker."""
import torch

import pytorch_step

args = pytorch_step.arguments(__doc__)
model = pytorch_step.new_model()
optimizer = torch.optim.SGD(model.parameters(), lr=args.rate)
data = pytorch_step.batches(args.data, args.batch, args.rank)


def step():
    images, labels = next(data)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


pytorch_step.measure(step, args.steps, args.warmup, lambda: None)
