#!/usr/bin/env python3
"""The network of cnn.py with Hugging Face Accelerate: its device, its mixed precision, its backward(). It needs the package accelerate.

    python examples/accelerated_cnn.py                                                  # servers in this process
    weir up --ps=2 --workers=2 examples/cnn.json -- python examples/accelerated_cnn.py

Each worker has an Accelerator of one process, since the servers join the workers.
"""
import argparse
import pathlib

import cnn
import torch
import torch.nn.functional as F
import weir.torch
from accelerate import Accelerator
from accelerate.utils import set_seed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--most", type=int, default=60000, help="examples to use")
    args = parser.parse_args()
    set_seed(0)
    torch.set_num_threads(1)
    accelerator = Accelerator(mixed_precision="bf16")
    # prepare() takes the model alone: the job has the optimizer, and gives out the batches.
    model = accelerator.prepare(cnn.network())
    opt = weir.torch.Optimizer(model, cnn.JOB, cnn.data_set(args.data, "train", args.most))

    for x, y in opt.loader():
        opt.zero_grad()
        loss = F.cross_entropy(model(x.to(accelerator.device)), y.to(accelerator.device))
        accelerator.backward(loss)
        opt.step(loss=loss)

    model = accelerator.unwrap_model(model, keep_fp32_wrapper=False).cpu().eval()
    x, y = cnn.data_set(args.data, "t10k", args.most)[:]
    with torch.no_grad():
        print(f"test accuracy: {(model(x).argmax(1) == y).float().mean():.3f}")


if __name__ == "__main__":
    main()
