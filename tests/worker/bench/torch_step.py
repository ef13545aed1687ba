#!/usr/bin/env python3
"""The training step of step_bench.cc in PyTorch; prints the same lines of JSON for the ways that both have."""
import argparse
import json
import statistics
import time

import torch

STEPS_A_ROUND = 10


def rounds(step, seconds):
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    found, begin = [], time.monotonic()
    while len(found) < 3 or time.monotonic() - begin < seconds:
        start = time.monotonic()
        for _ in range(STEPS_A_ROUND):
            step()
        torch.cuda.synchronize()
        found.append((time.monotonic() - start) / STEPS_A_ROUND)
    return statistics.median(found)


def make_step(precision, args):
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    model = torch.nn.Sequential(
        torch.nn.Linear(args.inputs, args.width), torch.nn.ReLU(),
        torch.nn.Linear(args.width, args.width), torch.nn.ReLU(),
        torch.nn.Linear(args.width, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.rand(args.batch, args.inputs, device="cuda") * 2 - 1
    labels = torch.arange(args.batch, device="cuda") % 10

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == "bf16", cache_enabled=False):
            loss = torch.nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()

    return step


def captured(step):
    """As PyTorch's documentation asks for it: warmed up and captured beside the default stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=784)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--device", default="cuda:0")
    args = parser.parse_args()
    torch.cuda.set_device(args.device)
    for precision in ["float32", "tf32", "bf16"]:
        for way in ["eager", "graph"]:
            step = make_step(precision, args)
            ms = 1000 * rounds(captured(step) if way == "graph" else step, args.seconds)
            print(json.dumps({"program": "pytorch " + torch.__version__, "way": way, "precision": precision,
                              "device": args.device, "ms": round(ms, 4)}), flush=True)


main()
