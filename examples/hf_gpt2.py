#!/usr/bin/env python3
"""A small GPT-2 of Hugging Face, with random weights, learns to write Shakespeare, character by character. It needs the package
transformers.

    python examples/hf_gpt2.py                                                      # servers in this process
    weir up --ps=2 --workers=2 examples/hf_gpt2.json -- python examples/hf_gpt2.py

The text, coriolanus.txt, is that of transformer.py.
"""
import argparse
import pathlib

import torch
import weir.torch
from transformers import GPT2Config, GPT2LMHeadModel

HERE = pathlib.Path(__file__).parent
CONTEXT = 64


class Pieces(torch.utils.data.Dataset):
    """Pieces of the text, which overlap."""

    def __init__(self, text):
        self.text = text

    def __len__(self):
        return (len(self.text) - CONTEXT) // 8

    def __getitem__(self, i):
        return self.text[8 * i:8 * i + CONTEXT]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--most", type=int, default=10**9, help="characters of the text to use")
    parser.add_argument("--save", help="the folder for the trained model, which from_pretrained() reads")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    text = (HERE / "coriolanus.txt").read_text()[:args.most]
    alphabet = sorted(set(text))
    numbers = torch.tensor([alphabet.index(c) for c in text])
    train, test = numbers[:len(text) * 9 // 10], numbers[len(text) * 9 // 10:]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(alphabet), n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=4, eos_token_id=0,
                                       bos_token_id=0)).to(device)

    opt = weir.torch.Optimizer(model, HERE / "hf_gpt2.json", Pieces(train))
    for pieces in opt.loader():
        opt.zero_grad()
        pieces = pieces.to(device)
        loss = model(input_ids=pieces, labels=pieces).loss
        loss.backward()
        opt.step(loss=loss)

    model.to("cpu").eval()
    with torch.no_grad():
        pieces = next(iter(torch.utils.data.DataLoader(Pieces(test), 1000)))
        guesses = model(input_ids=pieces).logits[:, :-1].argmax(-1)
    print(f"next characters guessed right: {(guesses == pieces[:, 1:]).float().mean():.3f}")
    if opt.rank == 0:
        begin = train[None, :8]
        written = model.generate(begin, attention_mask=torch.ones_like(begin), max_length=CONTEXT, do_sample=True, pad_token_id=0)
        print("".join(alphabet[n] for n in written[0]))
        if args.save:
            model.save_pretrained(args.save)


if __name__ == "__main__":
    main()
