"""A parameter server on PyTorch's RPC, for peers.py: each server has an equal part of all parameters, laid end to end. A worker sends
each server its part of the gradient, and gets the weights back in the same call.

In sync a server answers when all workers' gradients have come, as in PyTorch's tutorial on batch updates.
"""
import threading

import torch
import torch.distributed.rpc as rpc
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import pytorch_group
import pytorch_step

args = pytorch_step.arguments(__doc__, "transport")


class Shard:
    """A server's part of the weights."""

    def __init__(self, part):
        self.weights = parameters_to_vector(pytorch_step.new_model().parameters()).detach().chunk(args.servers)[part].clone()
        self.lock = threading.Lock()
        self.sum = torch.zeros_like(self.weights)
        self.waiting = []

    def push(self, gradient):
        """Returns a future of the weights after the update."""
        answer = torch.futures.Future()
        with self.lock:
            self.waiting.append(answer)
            self.sum += gradient
            if args.mode == "sync" and len(self.waiting) < args.workers:
                return answer
            # New memory: the old weights may still be on their way.
            weights = self.weights = self.weights.sub(self.sum, alpha=args.rate / len(self.waiting))
            self.sum.zero_()
            answered, self.waiting = self.waiting, []
        for one in answered:
            one.set_result(weights)
        return answer


shard = Shard(args.rank) if args.rank < args.servers else None


@rpc.functions.async_execution
def push(gradient):
    return shard.push(gradient)


def work():
    model = pytorch_step.new_model()
    parameters = list(model.parameters())
    data = pytorch_step.batches(args.data, args.batch, args.rank)

    def step():
        images, labels = next(data)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        gradient = parameters_to_vector(torch.autograd.grad(loss, parameters))
        # Views of one memory are sent with all of it.
        calls = [rpc.rpc_async(f"server{i}", push, (part.clone(),)) for i, part in enumerate(gradient.chunk(args.servers))]
        vector_to_parameters(torch.cat([call.wait() for call in calls]), parameters)
        return loss.detach()

    pytorch_step.measure(step, args.steps, args.warmup, pytorch_group.wait_for_workers)


pytorch_group.run(args, work)
