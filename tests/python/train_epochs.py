"""A worker whose loop has one within another for the epochs, for torch_epochs_test.py."""
import json
import os
import pathlib
import sys

import torch
import torch.nn.functional as F
import train

import weir.torch


def main():
    torch.set_num_threads(1)
    job, folder, model, data = sys.argv[1], pathlib.Path(sys.argv[2]), train.make_model(), train.Examples()
    opt = weir.torch.Optimizer(model, job, data)
    before = {"rank": opt.rank, "world_size": opt.world_size, "steps_total": opt.steps_total, "batches_total": opt.batches_total}
    epochs = {}
    for epoch in opt.epochs(num_workers=int(sys.argv[3])):
        numbers = epochs.setdefault(epoch.number, [])
        for x, y, n, _ in epoch:
            numbers += n.tolist()
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
            assert opt.epoch == epoch.number
        # What this leaves of the random numbers, and of the mode, must not change the next epoch.
        torch.rand(3)
        train.measure(model, data)
        model.train()
    torch.save(model.state_dict(), folder / f"model-{os.getpid()}.pt")
    (folder / f"told-{os.getpid()}").write_text(json.dumps({"before": before, "rank": opt.rank, "epochs": epochs}))


if __name__ == "__main__":
    main()
