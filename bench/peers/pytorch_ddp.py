"""PyTorch's DistributedDataParallel over gloo, for peers.py: no servers, the workers average their gradients. Always in step."""
import os

import torch
import torch.distributed as dist

import pytorch_step

args = pytorch_step.arguments(__doc__)
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port), GLOO_SOCKET_IFNAME="lo")
dist.init_process_group("gloo", rank=args.rank, world_size=args.workers)
model = torch.nn.parallel.DistributedDataParallel(pytorch_step.new_model())
optimizer = torch.optim.SGD(model.parameters(), lr=args.rate)
data = pytorch_step.batches(args.data, args.batch, args.rank)


def step():
    images, labels = next(data)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


pytorch_step.measure(step, args.steps, args.warmup, dist.barrier)
# Gloo's threads now and then abort the process if they find it ending, or the other one gone.
dist.barrier()
os._exit(0)
