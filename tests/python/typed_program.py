"""A program as users write it, for mypy alone: each type is as the docs say, and each line that is marked is an error."""
# A mark without an error is an error.
# pyright: reportUnnecessaryTypeIgnoreComment=error
from typing import assert_type

import numpy as np
import torch
import torch.utils.data
import weir
import weir.torch
from weir import Pushed, View, Weights, Work

def loop(client: weir.Client) -> None:
    for step in client.steps():
        step.gradient["w"][:] = step.weights["w"] * np.float32(0.5)
        step.push(loss=0.25)
        step.push({"w": np.zeros((784, 10), np.float32)})
        step.push({"w": torch.zeros(784, 10)})
        step.push({"w": [0.0]})  # type: ignore[dict-item]
        step.push("w")  # type: ignore[arg-type]
        keys = np.arange(5)
        rows = step.rows("users", keys)
        assert_type(rows, weir.Floats)
        step.push(rows={"users": (keys, rows)})
        step.push(rows={"users": rows})  # type: ignore[dict-item]


async def parts(client: weir.Client, into: dict[str, weir.Floats]) -> None:
    work = client.next_work(timeout=1.5)
    assert_type(work, Work | None)
    assert work is not None
    base = await client.pull(work.clock, into)
    assert_type(base, Weights)
    assert_type(await client.view(work.clock), View)
    assert_type(await client.push(work, base, into), Pushed)
    assert_type(client.push_pull(work, base, into, into).result(), tuple[Pushed, Weights])
    client.pull("0", into)  # type: ignore[arg-type]
    read = {"users": (np.arange(5), np.empty((5, 8), np.float32))}
    assert_type(await client.pull_rows(work.clock, read), Weights)
    assert_type(await client.push(work, base, into, rows=read), Pushed)
    client.pull_rows(work.clock, into)  # type: ignore[arg-type]


def train(model: torch.nn.Module, data: torch.utils.data.Dataset[torch.Tensor]) -> None:
    job = weir.torch.job(torch.optim.SGD(model.parameters(), lr=1), batch_size=8, epochs=1.5, consistency={"parts": 2})
    weir.torch.job(model.parameters(), batch_size=8, epochs=1)  # type: ignore[arg-type]
    weir.torch.job(torch.optim.SGD(model.parameters(), lr=1), epochs=1)  # type: ignore[call-arg]
    opt = weir.torch.Optimizer(model, job, data)
    for epoch in opt.epochs(num_workers=2):
        assert_type(epoch.number, int)
        for x, y in epoch:
            opt.step(loss=x)
    assert_type(opt.rank + opt.steps_total, int)


def main() -> None:
    with weir.Client("job.json", {"w": weir.Tensor((784, 10), "normal", 0.01), "b": (10,)}, train_examples=60_000) as client:
        loop(client)
    weir.Client("job.json", {"w": np.zeros((784, 10), np.float32), "b": np.zeros(10, np.float32)}, 60_000)
    weir.Client("job.json", {"w": torch.zeros(784, 10), "b": torch.zeros(10)}, 60_000)
    weir.Client("job.json", {"b": (10,)})  # type: ignore[call-arg]
    weir.Client("job.json", {"w": "784 x 10"}, 1)  # type: ignore[dict-item]
