"""Servers and workers on PyTorch's RPC, for the programs of peers.py. Ranks: the servers first."""
import os
import threading

import torch.distributed.rpc as rpc

arrived = None  # where server 0 waits for all workers


def wait():
    arrived.wait()


def wait_for_workers():
    """Called by each worker: waits until all workers have called it."""
    rpc.rpc_sync("server0", wait)


def run(args, work):
    """Joins the group. A worker works; a server serves until all workers have done their work."""
    global arrived
    arrived = threading.Barrier(args.workers)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port), TP_SOCKET_IFNAME="lo")
    # TensorPipe would take shared memory wherever it can.
    options = rpc.TensorPipeRpcBackendOptions(
        **({"_transports": ["uv"], "_channels": ["basic"]} if args.transport == "tcp" else {"_transports": ["shm"]}))
    serves = args.rank < args.servers
    name = f"server{args.rank}" if serves else f"worker{args.rank - args.servers}"
    rpc.init_rpc(name, rank=args.rank, world_size=args.servers + args.workers, rpc_backend_options=options)
    if not serves:
        work()
    rpc.shutdown()
