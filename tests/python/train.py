"""A worker that trains a small model with PyTorch, for the tests; its arguments say what goes wrong."""
import argparse
import os
import pathlib
import signal
import sys
import time

import torch
import torch.nn.functional as F

import weir.torch

EXAMPLES, INPUTS, CLASSES = 96, 6, 3
# So wide that a gradient travels in several messages to each of 3 servers (wire.chunk_kib 256).
WIDE = 1 << 15


class Examples(torch.utils.data.Dataset):
    """x, its class, its number, and whether it was made in the training process itself."""

    def __init__(self):
        random = torch.Generator().manual_seed(5)
        self.x = torch.randn(EXAMPLES, INPUTS, generator=random)
        self.y = (self.x @ torch.randn(INPUTS, CLASSES, generator=random)).argmax(1)

    def __len__(self):
        return EXAMPLES

    def __getitem__(self, i):
        return self.x[i], self.y[i], i, torch.utils.data.get_worker_info() is None


def make_model(dropout=0.25, hidden=16):
    torch.manual_seed(11)
    return torch.nn.Sequential(torch.nn.Linear(INPUTS, hidden), torch.nn.Tanh(), torch.nn.Dropout(dropout),
                               torch.nn.Linear(hidden, CLASSES))


def once(marker):
    """Whether this is the first call with this file."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("job")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--num_workers", type=int, default=0)
    parser.add_argument("--start", default=None, help="how processes of the loader start")
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--die_at", type=int, default=-1, help="the batch at which one worker kills itself, once")
    parser.add_argument("--hold_at", type=int, default=-1, help="the batch at which one worker waits for the file go")
    parser.add_argument("--fail_at", type=int, default=-1, help="the batch at which an exception is raised")
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--overlap", action="store_true")
    args = parser.parse_args()

    torch.set_num_threads(1)
    model = make_model(hidden=args.hidden)
    opt = weir.torch.Optimizer(model, args.job, Examples(), servers=args.servers, overlap=args.overlap)
    seen, made_here = [], 0
    for n, (x, y, numbers, here) in enumerate(opt.loader(num_workers=args.num_workers, multiprocessing_context=args.start)):
        if n == args.die_at and once(args.folder / "died"):
            os.kill(os.getpid(), signal.SIGKILL)
        if n == args.hold_at and once(args.folder / "held"):
            while not (args.folder / "go").exists():
                time.sleep(0.005)
        if n == args.fail_at:
            raise ValueError("this batch is bad")
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step(loss=loss)
        seen += numbers.tolist()
        made_here += int(here[0])
    (args.folder / f"seen-{os.getpid()}").write_text(" ".join(map(str, seen)))
    (args.folder / f"here-{os.getpid()}").write_text(str(made_here))
    torch.save(model.state_dict(), args.folder / f"model-{os.getpid()}.pt")


if __name__ == "__main__":
    sys.exit(main())
