"""Rows of an embedding table on PyTorch's RPC, for peers.py: server s has the rows of the keys k with k mod servers = s, end to end.
In a step a worker reads the rows of a batch to all places of their keys, and pushes gradients, summed by key. The servers apply row-wise
Adagrad. The different keys of each batch were found before.
"""
import argparse
import json
import threading
import time

import torch
import torch.distributed.rpc as rpc

import pytorch_group
from row_batches import zipf_batches

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--transport", required=True)
for name in ["rank", "port", "servers", "workers", "steps", "warmup", "rows", "dim", "keys"]:
    parser.add_argument(f"--{name}", type=int, required=True)
parser.add_argument("--rate", type=float, required=True)
args = parser.parse_args()
torch.set_num_threads(1)


class Table:
    """A server's rows."""

    def __init__(self):
        own = -(-args.rows // args.servers)
        self.values = torch.full((own, args.dim), 0.01)
        self.squares = torch.zeros(own)
        self.lock = threading.Lock()

    def pull(self, rows):
        with self.lock:
            return self.values[rows]

    def push(self, rows, gradients):
        with self.lock:
            squares = self.squares[rows] + gradients.square().mean(1)
            self.squares[rows] = squares
            self.values.index_add_(0, rows, gradients * (-args.rate / (squares.sqrt() + 1e-10)).unsqueeze(1))


table = Table() if args.rank < args.servers else None


def pull(rows):
    return table.pull(rows)


def push(rows, gradients):
    table.push(rows, gradients)


def work():
    # Of each batch: by server the rows, and for each key of the batch its place among all of them.
    batches = []
    for keys in torch.from_numpy(zipf_batches(args.rows, args.keys, args.rank)):
        parts, places, before = [], torch.empty_like(keys), 0
        for server in range(args.servers):
            own = keys % args.servers == server
            rows, place = torch.unique(keys[own] // args.servers, return_inverse=True)
            places[own] = place + before
            before += len(rows)
            parts.append(rows)
        batches.append((parts, places, before))

    def step(number):
        parts, places, count = batches[number % len(batches)]
        calls = [rpc.rpc_async(f"server{i}", pull, (rows,)) for i, rows in enumerate(parts)]
        values = torch.cat([call.wait() for call in calls])[places]
        # The values that were read serve as the gradient: nothing is computed.
        sums = torch.zeros(count, args.dim).index_add_(0, places, values)
        # Views of one memory are sent with all of it.
        split = [part.clone() for part in sums.split([len(rows) for rows in parts])]
        for call in [rpc.rpc_async(f"server{i}", push, (rows, split[i])) for i, rows in enumerate(parts)]:
            call.wait()

    for number in range(args.warmup):
        step(number)
    pytorch_group.wait_for_workers()
    start = time.monotonic()
    for number in range(args.steps):
        step(number)
    print(json.dumps({"steps": args.steps, "seconds": time.monotonic() - start}), flush=True)


pytorch_group.run(args, work)
