"""A worker that trains a small model with embedding tables, for the tests: it saves the trained weights, and the rows of all keys."""
import argparse
import os
import pathlib
import sys

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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("job")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--servers", type=int, default=1)
    args = parser.parse_args()

    torch.set_num_threads(1)
    data = Clicks()
    job = weir.Job(args.job)
    model = make_model(job.config["tables"][0]["dim"])
    opt = weir.torch.Optimizer(model, args.job, data, servers=args.servers)
    losses, tables = [], {"words": data.keys, "items": data.keys}
    for words, counts, clicked, y in opt.loader(final_keys=tables):
        loss = F.binary_cross_entropy_with_logits(model(words, counts, clicked), y)
        opt.zero_grad()
        loss.backward()
        opt.step(loss=loss)
        losses.append(loss.item())
    state = {**model.state_dict(), "words": model.clicked(data.keys), "items": model.items(data.keys),
             "losses": torch.tensor(losses)}
    torch.save(state, args.folder / f"model-{os.getpid()}.pt")


if __name__ == "__main__":
    sys.exit(main())
