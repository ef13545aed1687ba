"""BatchNorm layers, which cannot train on one value per channel, and the job's smallest batch."""
from __future__ import annotations

from typing import Any

import torch

from ..errors import ConfigError
from ..job import Job
from .whole_job import length_of


def smallest_batch(job: Job, train_examples: int) -> tuple[int, str]:
    """The examples of the job's smallest batch, and which batch that is. Batches cross the ends of epochs, so that only the last one
    may be short."""
    batch = int(job.get("data.batch_size", 32))
    total = length_of(job, train_examples)
    left = total % batch
    if left == 0 or job.get("data.drop_last", False):
        return batch, f"data.batch_size is {batch}; set at least 2"
    return left, (f"the job has {total} examples in batches of {batch} (data.batch_size), so that its last batch has {left}. Set "
                  "data.drop_last, which leaves out the job's end where a step (in bounded and async: a batch) is not full, "
                  "or another data.batch_size or train.examples")


class SmallBatchCheck:
    """In the forwards of the first batch, of `examples` examples, raises ConfigError if a BatchNorm layer will get a single value per
    channel from the job's smallest batch. Until remove()."""

    def __init__(self, model: torch.nn.Module, job: Job, train_examples: int, examples: int):
        self._smallest, self._why = smallest_batch(job, train_examples)
        self._examples = examples
        self._hooks = []
        if self._smallest == 1:
            self._hooks = [layer.register_forward_pre_hook(self._hook(name or type(layer).__name__))
                           for name, layer in model.named_modules() if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)]

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _hook(self, name: str) -> Any:
        def check(layer: Any, inputs: tuple[Any, ...]) -> None:
            x = inputs[0] if inputs else None
            if x is None or x.dim() < 2 or not (layer.training or layer.running_mean is None):
                return
            # In proportion, where the program cuts the batch, or makes several inputs of an example.
            if x.numel() // x.shape[1] <= self._examples:
                raise ConfigError(f"the BatchNorm layer {name} cannot train on a batch of one example, of which it gets one value "
                                  f"per channel: {self._why}")

        return check
