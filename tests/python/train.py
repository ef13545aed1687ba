"""A worker that trains a small model with PyTorch, or the evaluator, for the tests; its arguments say what goes wrong."""
import argparse
import json
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


class Stream(torch.utils.data.IterableDataset):
    """The same examples one after another, x, class and number, and the process that made them; each of the loader's
    processes has some of them."""

    def __iter__(self):
        info, data = torch.utils.data.get_worker_info(), Examples()
        for i in range(info.id if info else 0, EXAMPLES, info.num_workers if info else 1):
            yield *data[i][:3], os.getpid()


class SizedStream(Stream):
    def __len__(self):
        return EXAMPLES


class OwnNorm(torch.nn.Module):
    """Normalises with running statistics of its own: one is changed in place, the other is another tensor after each forward."""

    def __init__(self, n):
        super().__init__()
        self.register_buffer("mean", torch.zeros(n))
        self.register_buffer("square", torch.ones(n))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.1)
                self.square = 0.9 * self.square + 0.1 * (x * x).mean(0)
        return (x - self.mean) / (self.square - self.mean ** 2 + 0.1).sqrt()


def make_model(dropout=0.25, hidden=16, norm=False, own=False):
    """own: with buffers that are not BatchNorm's."""
    torch.manual_seed(11)
    layers = [torch.nn.Linear(INPUTS, hidden), torch.nn.Tanh(), torch.nn.Dropout(dropout), torch.nn.Linear(hidden, CLASSES)]
    if norm:
        # The second one's statistics are means over all batches, so that their number counts.
        layers += [torch.nn.BatchNorm1d(CLASSES), torch.nn.BatchNorm1d(CLASSES, momentum=None)]
    if own:
        torch.nn.utils.spectral_norm(layers[0])
        layers.append(OwnNorm(CLASSES))
    return torch.nn.Sequential(*layers)


def make_inner(model):
    """Of local steps."""
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def weight_of(y):
    return (y > 0).sum() + 0.3


def once(marker):
    """Whether this is the first call with this file."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False


def measure(model, data):
    with torch.no_grad():
        out = model.eval()(data.x)
    return {"loss": F.cross_entropy(out, data.y).item(), "accuracy": (out.argmax(1) == data.y).float().mean().item(),
            "examples": len(data)}


def evaluate(model, args):
    """What an evaluator task does: notes the versions, and keeps the newest weights. It lets the worker that is held go when it
    has read a few times meanwhile."""
    versions, meanwhile = [], 0

    class Reader(weir.torch.Reader):
        def snapshot(self, keys=None):
            nonlocal meanwhile
            meanwhile += (args.folder / "held").exists()
            if meanwhile == 4:
                (args.folder / "go").touch()
            return super().snapshot(keys)

    data = Examples()
    with Reader(model, args.job) as reader:
        for version in reader.versions(interval=0.02):
            versions.append(version)
            torch.save(model.state_dict(), args.folder / "read.pt")
            reader.report(**measure(model, data))
    (args.folder / "versions").write_text(" ".join(map(str, versions)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("job")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--num_workers", type=int, default=0)
    parser.add_argument("--start", default=None, help="how processes of the loader start")
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--die_at", type=int, default=-1, help="the batch at which one worker kills itself, once")
    parser.add_argument("--hold_at", type=int, default=-1, help="the batch at which one worker waits for the file go")
    parser.add_argument("--go_on", action="store_true", help="after the job, until there is the file go")
    parser.add_argument("--fail_after", action="store_true", help="an exception is raised after the job")
    parser.add_argument("--fail_at", type=int, default=-1, help="the batch at which an exception is raised")
    parser.add_argument("--leave_at", type=int, default=-1, help="the batch at which the loop is left")
    parser.add_argument("--one_leaves", action="store_true", help="one worker alone")
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--norm", action="store_true")
    parser.add_argument("--own", action="store_true")
    parser.add_argument("--overlap", action="store_true")
    parser.add_argument("--inner", action="store_true", help="the worker takes local steps")
    parser.add_argument("--weigh", action="store_true", help="each batch has its weight")
    parser.add_argument("--stream", action="store_true", help="the examples come as an IterableDataset")
    args = parser.parse_args()

    torch.set_num_threads(1)
    model = make_model(hidden=args.hidden, norm=args.norm, own=args.own)
    if json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("type") == "evaluator":
        evaluate(model, args)
        return
    data = SizedStream() if args.stream else Examples()
    opt = weir.torch.Optimizer(model, args.job, data, servers=args.servers, overlap=args.overlap,
                               inner=make_inner(model) if args.inner else None)
    seen, made_here = [], 0
    for n, (x, y, numbers, here) in enumerate(opt.loader(num_workers=args.num_workers, multiprocessing_context=args.start)):
        if n == args.die_at and once(args.folder / "died"):
            os.kill(os.getpid(), signal.SIGKILL)
        if n == args.hold_at and once(args.folder / "held"):
            while not (args.folder / "go").exists():
                time.sleep(0.005)
        if n == args.leave_at and (not args.one_leaves or once(args.folder / "left")):
            break
        if n == args.fail_at:
            raise ValueError("this batch is bad")
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step(loss=loss, weight=weight_of(y) if args.weigh else None)
        seen += numbers.tolist()
        made_here += 0 if args.stream else int(here[0])
    if args.fail_after:
        raise ValueError("what follows on the job is bad")
    while args.go_on and not (args.folder / "go").exists():
        time.sleep(0.005)
    (args.folder / f"seen-{os.getpid()}").write_text(" ".join(map(str, seen)))
    (args.folder / f"here-{os.getpid()}").write_text(str(made_here))
    torch.save(model.state_dict(), args.folder / f"model-{os.getpid()}.pt")


if __name__ == "__main__":
    sys.exit(main())
