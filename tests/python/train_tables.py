"""A worker that trains a small model with embedding tables, for the tests: it saves the trained weights, and the rows of all keys."""
import argparse
import collections
import json
import os
import pathlib
import signal
import sys
import time

import torch
import torch.nn.functional as F

import weir.torch

EXAMPLES, LENGTH, VOCABULARY = 96, 4, 30


def keys_of_vocabulary():
    """Anywhere in 64 bits."""
    random = torch.Generator().manual_seed(3)
    return torch.randint(-2**63, 2**63 - 1, (VOCABULARY,), generator=random)


class Clicks(torch.utils.data.Dataset):
    """Words (some twice in a text), how much each counts, the one that was clicked, and whether it was bought."""

    def __init__(self):
        random = torch.Generator().manual_seed(5)
        self.numbers = torch.randint(VOCABULARY, (EXAMPLES, LENGTH), generator=random)
        self.numbers[:, 1] = torch.where(self.numbers[:, 1] % 2 == 0, self.numbers[:, 0], self.numbers[:, 1])
        self.counts = torch.rand(EXAMPLES, LENGTH, generator=random)
        self.clicked = torch.randint(VOCABULARY, (EXAMPLES,), generator=random)
        self.y = ((self.numbers.sum(1) + self.clicked) % 3 == 0).float()
        self.keys = keys_of_vocabulary()

    def __len__(self):
        return EXAMPLES

    def __getitem__(self, i):
        return self.keys[self.numbers[i]], self.counts[i], self.keys[self.clicked[i]], self.y[i]


class Model(torch.nn.Module):
    """One table by three modules, another by one."""

    def __init__(self, words, weighted, clicked, items, dim):
        super().__init__()
        self.words, self.weighted, self.clicked, self.items = words, weighted, clicked, items
        torch.manual_seed(11)
        self.out = torch.nn.Linear(4 * dim, 1)

    def forward(self, words, counts, clicked):
        offsets = torch.arange(0, words.numel(), words.shape[1])
        found = [self.words(words), self.weighted(words.flatten(), offsets, counts.flatten()), self.clicked(clicked),
                 self.items(clicked)]
        return self.out(torch.cat(found, 1)).squeeze(1)


def make_model(dim):
    return Model(weir.torch.EmbeddingBag("words", "mean"), weir.torch.EmbeddingBag("words"), weir.torch.Embedding("words"),
                 weir.torch.Embedding("items"), dim)


def stand_still(batch, worker, folder):
    stopped = folder / "stopped"
    if worker == 1 and batch == 1:
        stopped.with_suffix(".part").write_text(str(os.getpid()))
        stopped.with_suffix(".part").rename(stopped)
        os.kill(os.getpid(), signal.SIGSTOP)
    # At its fourth batch from here worker 0 has computed both parts of the step in which worker 1 stands still.
    if worker == 0 and stopped.exists():
        with open(folder / "since", "a", encoding="utf-8") as since:
            since.write(".")
            if since.tell() == 4:
                os.kill(int(stopped.read_text()), signal.SIGCONT)


def snapshot(opt, model, data, folder):
    """Notes whether this worker is another member of the job after it."""
    before = opt.client.start_clock
    try:
        with opt.snapshot() as version:
            found = model.items(data.keys).any() and version >= 2 and opt.client.start_clock > before
    except weir.JobDone:
        found = True  # the others were faster
    if found:
        (folder / "read").touch()


def everything(model, keys):
    return {**{name: value.clone() for name, value in model.state_dict().items()}, "words": model.clicked(keys),
            "items": model.items(keys)}


def evaluate(model, tables, args):
    """What an evaluator task does: keeps the trained weights with rows of the same version, and the newest rows."""
    def keep(_):
        torch.save(everything(model, tables["words"]), args.folder / "read.pt")
        return {"loss": 0}

    with weir.torch.Reader(model, args.job, evaluate=keep if args.asked else None) as reader:
        (args.folder / "evaluator").touch()
        if args.asked:
            collections.deque(reader.evaluations(keys=tables), maxlen=0)
        else:
            for _ in reader.versions(interval=0.02, keys=tables):
                keep(model)
        with reader.snapshot():
            torch.save(everything(model, tables["words"]), args.folder / "newest.pt")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("job")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--num_workers", type=int, default=0)
    parser.add_argument("--prefetch", action="store_true", help="rows are read early")
    parser.add_argument("--await_evaluator", action="store_true", help="a job this short would be done when the evaluator comes")
    parser.add_argument("--asked", action="store_true", help="the evaluator reads when the job asks for it")
    parser.add_argument("--stop", action="store_true",
                        help="worker 1 stands still before its second batch, until worker 0 has gone on without it")
    parser.add_argument("--snapshot", action="store_true", help="and then reads the newest weights before its rows")
    args = parser.parse_args()

    torch.set_num_threads(1)
    data = Clicks()
    job = weir.Job(args.job)
    model = make_model(job.config["tables"][0]["dim"])
    tables = {"words": data.keys, "items": data.keys}
    if json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("type") == "evaluator":
        evaluate(model, tables, args)
        return
    opt = weir.torch.Optimizer(model, args.job, data, servers=args.servers)
    losses, early = [], (lambda batch: {"words": torch.cat([batch[0].flatten(), batch[2]]), "items": batch[2]})
    loader = opt.loader(final_keys=tables, prefetch_keys=early if args.prefetch else None, num_workers=args.num_workers)
    for n, (words, counts, clicked, y) in enumerate(loader):
        while args.await_evaluator and not (args.folder / "evaluator").exists():
            time.sleep(0.005)
        if args.stop:
            worker = opt.client.worker
            stand_still(n, worker, args.folder)
            if args.snapshot and worker == 1 and n == 1:
                snapshot(opt, model, data, args.folder)
        if not model.items(clicked).any():
            (args.folder / "late").touch()
        loss = F.binary_cross_entropy_with_logits(model(words, counts, clicked), y)
        opt.zero_grad()
        loss.backward()
        opt.step(loss=loss)
        losses.append(loss.item())
    torch.save({**everything(model, data.keys), "losses": torch.tensor(losses)}, args.folder / f"model-{os.getpid()}.pt")


if __name__ == "__main__":
    sys.exit(main())
