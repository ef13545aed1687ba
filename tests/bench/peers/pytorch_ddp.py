"""PyTorch's DistributedDataParallel over gloo, for peers.py: no servers, the workers average their gradients. Always in step."""
import os

import torch
import torch.distributed as dist

import pytorch_step

args = pytorch_step.arguments(__doc__)
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port), GLOO_SOCKET_IFNAME="lo")
dist.init_process_group("gloo", rank=args.rank, world_size=args.workers)
model = torch.nn.parallel.DistributedDataParallel(pytorch_step.new_model())

pytorch_step.measure(pytorch_step.step_of(model, args), args.steps, args.warmup, dist.barrier)
# Gloo's threads now and then abort the process if they find it ending, or the other one gone.
dist.barrier()
os._exit(0)
