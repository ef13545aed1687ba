#!/usr/bin/python3
"""Local steps (DiLoCo) beside plain sync: trains the model of examples/transformer.py on the text of docs/ with as many examples, and prints a
line of JSON, with the loss on text that was held out.

    tests/bench/python/local_steps.py --rounds=10 --steps=500 [--keep] [--push=int4]     # rounds of so many local steps
    tests/bench/python/local_steps.py --rounds=5000 --steps=1                            # plain sync

The parts of a step are those of as many workers, which one process computes in turn; so the bits are theirs (docs/concepts.md).
"""
import argparse
import json
import math
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path += [str(ROOT / "python"), str(ROOT / "examples")]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import transformer  # noqa: E402
import weir.torch  # noqa: E402

BATCH, PIECE = 8, 4096
# Small, since thousands of steps are needed.
transformer.WIDTH = transformer.CONTEXT = 32

parser = argparse.ArgumentParser()
parser.add_argument("--parts", type=int, default=4)
parser.add_argument("--rounds", type=int, required=True, help="steps of the job")
parser.add_argument("--steps", type=int, required=True, help="local.steps; 1: plain sync")
parser.add_argument("--keep", action="store_true", help="local.keep_state")
parser.add_argument("--push", default="f32", help="wire.push_dtype")
parser.add_argument("--rate", type=float, default=0.004, help="of AdamW, the rule of local steps or of plain sync")
parser.add_argument("--outer", type=float, default=0.7, help="learning rate of the outer rule, Nesterov's")
parser.add_argument("--momentum", type=float, default=0.9, help="of the outer rule")
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()

torch.manual_seed(args.seed)
torch.set_num_threads(1)
text = "".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md")))
alphabet = {c: i for i, c in enumerate(sorted(set(text)))}
pieces = torch.tensor([alphabet[c] for c in text[:len(text) // PIECE * PIECE]]).split(PIECE)
train = torch.utils.data.ConcatDataset([transformer.Windows(piece) for i, piece in enumerate(pieces) if i % 10 != 9])
test = torch.utils.data.ConcatDataset([transformer.Windows(piece) for piece in pieces[9::10]])
model = transformer.Transformer(len(alphabet))

total, warmup, local = args.rounds * args.steps, 0.02, args.steps > 1
adamw = {"type": "adamw", "learning_rate": args.rate, "weight_decay": 0.1, "schedule": {"type": "cosine", "warmup_share": warmup}}
outer = {"type": "nesterov", "learning_rate": args.outer, "momentum": args.momentum}
job = {"seed": args.seed, "data": {"batch_size": BATCH}, "train": {"steps": args.rounds, "clip_norm": 1, "divergence": 0},
       "consistency": {"mode": "sync", "parts": args.parts}, "wire": {"push_dtype": args.push},
       "optimizer": outer if local else adamw}
inner = None
if local:
    job["local"] = {"steps": args.steps, "keep_state": args.keep}
    inner = torch.optim.AdamW(model.parameters(), lr=args.rate, weight_decay=0.1)
opt = weir.torch.Optimizer(model, job, train, inner=inner)
begin = time.monotonic()
for x, y in opt.loader():
    if inner is not None:  # as optimizer.schedule
        done = opt.local_step / total
        rate = done / warmup if done < warmup else (1 + math.cos(math.pi * (done - warmup) / (1 - warmup))) / 2
        inner.param_groups[0]["lr"] = args.rate * rate
    opt.zero_grad()
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss.backward()
    opt.step(loss=loss)
seconds = time.monotonic() - begin

model.eval()
with torch.no_grad():
    losses = [F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item() for x, y in torch.utils.data.DataLoader(test, 500)]
values = sum(p.numel() for p in model.parameters())
print(json.dumps({**vars(args), "loss": round(sum(losses) / len(losses), 4), "pushed_values": args.rounds * args.parts * values,
                  "seconds": round(seconds)}))
