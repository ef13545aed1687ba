"""A worker whose job is what weir.torch.job() makes, or with --write the program that writes the job's file, for torch_job_test.py."""
import os
import pathlib
import sys

import torch
import torch.nn.functional as F
import train

import weir.torch


def main():
    torch.set_num_threads(1)
    folder, model = pathlib.Path(sys.argv[1]), train.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    job = weir.torch.job(optimizer, batch_size=8, epochs=4, seed=9, consistency={"parts": 3}, server={"min_shard_kib": 0})
    if sys.argv[2:] == ["--write"]:
        job.write(folder / "job.json")
        return
    opt = weir.torch.Optimizer(model, job, train.Examples())
    for x, y, *_ in opt.loader():
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
    torch.save(model.state_dict(), folder / f"model-{os.getpid()}.pt")


if __name__ == "__main__":
    main()
