"""The tensors of a PyTorch model that a job trains."""
from __future__ import annotations

import contextlib
import os
from typing import Iterable, Iterator, Mapping

import numpy as np
import torch

from .. import job as _job
from ..client import Client, Weights
from ..errors import ConfigError
from ..job import FlatTensors, Floats, Tensor
from ..tables import Rows


# What BatchNorm layers keep; a job has the count of batches as float32 too.
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def original(model: torch.nn.Module) -> torch.nn.Module:
    """The model that torch.compile() has made this one of, whose names have no "_orig_mod." in front; or else itself."""
    found = getattr(model, "_orig_mod", model)
    return found if isinstance(found, torch.nn.Module) else model


class ModelWeights:
    """The parameters of a model that require a gradient, and the running statistics of its BatchNorm layers, shared ones
    once."""

    def __init__(self, model: torch.nn.Module):
        model = original(model)
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ConfigError("the model has no parameter that requires a gradient")
        for name, p in self.parameters.items():
            if p.dtype not in (torch.float32, torch.bfloat16) or p.device.type != "cpu":
                raise ConfigError(f"{name} is {p.dtype} on {p.device}; Weir trains float32 and bfloat16 parameters on the CPU")
        layers = [name for name, layer in model.named_modules() if isinstance(layer, torch.nn.modules.batchnorm._NormBase)]
        names = {f"{layer}.{name}".lstrip(".") for layer in layers for name in _STATISTICS}
        self.statistics = {name: buffer for name, buffer in model.named_buffers() if name in names}
        #: Both, in the order of the job's tensors.
        self.all = {**self.parameters, **self.statistics}

    def tensors(self) -> dict[str, Tensor]:
        """As a weir.Client takes them, with the model's values as the initial ones."""
        return {name: Tensor(array.shape, buffer=name in self.statistics, values=array)
                for name, array in self.arrays().items()}

    def arrays(self) -> dict[str, Floats]:
        """The values as float32, each where the model has it if it has it so."""
        return {name: t.detach().float().numpy() for name, t in self.all.items()}

    def save(self, directory: str | os.PathLike[str]) -> None:
        """As weir.save_weights()."""
        _job.save_weights(directory, self.arrays(), self.statistics)

    @torch.no_grad()
    def load(self, values: Mapping[str, Floats]) -> None:
        """Copies the values into the model."""
        for t, value in zip(self.all.values(), as_tensors(values, self.all)):
            # The mean of counts that are equal may not be one to the last bit.
            t.copy_(value if t.is_floating_point() else value.round())

    @contextlib.contextmanager
    def snapshot(self, client: Client, memory: Floats | None = None, rows: Rows | None = None) -> Iterator[Weights]:
        """Within `with`, the model has the newest consistent weights of the job; then its own again. The value is which
        they are. memory: as many floats as the model has, which get the weights as the servers have them. rows: are read
        with them (Client.snapshot())."""
        new = client.model.split(np.empty(client.model.elements, dtype=np.float32) if memory is None else memory)
        weights = client.snapshot(new, rows).result()
        own = {name: array.copy() for name, array in self.arrays().items()}
        self.load(new)
        try:
            yield weights
        finally:
            self.load(own)


def as_tensors(arrays: Mapping[str, Floats], names: Iterable[str]) -> list[torch.Tensor]:
    """The arrays with these names as tensors of the same memory. For memory that is used again and again they are made once;
    `names` are those of all its tensors then."""
    known = arrays.converted if isinstance(arrays, FlatTensors) else None
    if known is not None:
        return known  # type: ignore[no-any-return]
    tensors = [torch.from_numpy(arrays[name]) for name in names]
    if isinstance(arrays, FlatTensors):
        arrays.converted = tensors
    return tensors


def save_weights(model: torch.nn.Module, directory: str | os.PathLike[str]) -> None:
    """Writes the model's parameters and running statistics into a folder for `checkpoint.init_from`: the values that a
    job then begins with. Fails if the folder holds weights already."""
    ModelWeights(model).save(directory)
