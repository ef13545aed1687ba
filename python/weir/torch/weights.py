"""The tensors of a PyTorch model that a job trains."""
from __future__ import annotations

import contextlib
import os
from typing import Iterator, Mapping

import numpy as np
import torch

from .. import job as _job
from ..client import Client
from ..errors import ConfigError
from ..job import Floats, Tensor


class ModelWeights:
    """The parameters of a model that require a gradient, shared ones once."""

    def __init__(self, model: torch.nn.Module):
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ConfigError("the model has no parameter that requires a gradient")
        for name, p in self.parameters.items():
            if p.dtype != torch.float32 or p.device.type != "cpu":
                raise ConfigError(f"{name} is {p.dtype} on {p.device}; Weir trains float32 parameters on the CPU "
                                  "(torch.autocast computes in bfloat16 and leaves the parameters float32)")

    def tensors(self) -> dict[str, Tensor]:
        """As a weir.Client takes them."""
        return {name: Tensor(tuple(p.shape)) for name, p in self.parameters.items()}

    def arrays(self) -> dict[str, Floats]:
        """The values, where the model has them."""
        return {name: p.detach().numpy() for name, p in self.parameters.items()}

    @torch.no_grad()
    def load(self, values: Mapping[str, Floats]) -> None:
        """Copies the values into the model."""
        for name, p in self.parameters.items():
            p.copy_(torch.from_numpy(values[name]))

    @contextlib.contextmanager
    def snapshot(self, client: Client) -> Iterator[int]:
        """Within `with`, the model has the newest consistent weights of the job; then its own again. The value is their
        version."""
        new = client.model.split(np.empty(client.model.elements, dtype=np.float32))
        version = client.snapshot(new).result().version
        own = {name: array.copy() for name, array in self.arrays().items()}
        self.load(new)
        try:
            yield version
        finally:
            self.load(own)


def save_weights(model: torch.nn.Module, directory: str | os.PathLike[str]) -> None:
    """Writes the model's parameters into a folder for `checkpoint.init_from`: the values that a job in a cluster begins
    with. Fails if the folder holds weights already."""
    _job.save_weights(directory, ModelWeights(model).arrays())
