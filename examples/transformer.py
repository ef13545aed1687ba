#!/usr/bin/env python3
"""A transformer that writes Shakespeare, character by character.

    python examples/transformer.py                                                          # servers in this process
    weir up --ps=2 --workers=2 examples/transformer.json -- python examples/transformer.py

With examples/transformer_local.json as the job, a worker takes 20 steps of its own between two exchanges (DiLoCo).

The text, coriolanus.txt, is the first act of Coriolanus, in the public domain, with which "tiny shakespeare" begins.
"""
import argparse
import pathlib

import torch
import torch.nn.functional as F
import weir.torch
from torch import nn

HERE = pathlib.Path(__file__).parent
WIDTH, HEADS, LAYERS, CONTEXT = 64, 4, 2, 64


class Windows(torch.utils.data.Dataset):
    """Pieces of the text, and the characters that follow on each of theirs."""

    def __init__(self, text):
        self.text = text

    def __len__(self):
        return (len(self.text) - 1 - CONTEXT) // 8

    def __getitem__(self, i):
        piece = self.text[8 * i:8 * i + CONTEXT + 1]
        return piece[:-1], piece[1:]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x):
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        h = self.norm1(x)
        x = x + self.attention(h, h, h, attn_mask=future, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, characters):
        super().__init__()
        self.token, self.position = nn.Embedding(characters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters, bias=False)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)
        self.token.weight = self.head.weight  # tied: the job trains it once

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.token(x) + self.position.weight[:x.shape[1]])))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--most", type=int, default=10**9, help="characters of the text to use")
    parser.add_argument("--job", default=HERE / "transformer.json", help="the job's config")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    text = (HERE / "coriolanus.txt").read_text()[:args.most]
    alphabet = sorted(set(text))
    numbers = torch.tensor([alphabet.index(c) for c in text])
    train, test = numbers[:len(text) * 9 // 10], numbers[len(text) * 9 // 10:]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Transformer(len(alphabet)).to(device)

    local = weir.Job(args.job).get("local.steps", 1) > 1
    inner = torch.optim.AdamW(model.parameters(), lr=0.004, weight_decay=0.1) if local else None
    opt = weir.torch.Optimizer(model, args.job, Windows(train), inner=inner)
    for x, y in opt.loader():
        opt.zero_grad()
        loss = F.cross_entropy(model(x.to(device)).flatten(0, 1), y.to(device).flatten())
        loss.backward()
        opt.step(loss=loss)

    model.to("cpu").eval()
    with torch.no_grad():
        x, y = next(iter(torch.utils.data.DataLoader(Windows(test), 1000)))
        print(f"next characters guessed right: {(model(x).argmax(-1) == y).float().mean():.3f}")
        for _ in range(300):
            p = F.softmax(model(train[None, -CONTEXT:])[0, -1] / 0.8, 0)
            train = torch.cat([train, torch.multinomial(p, 1)])
    print("".join(alphabet[n] for n in train[-300:]))


if __name__ == "__main__":
    main()
