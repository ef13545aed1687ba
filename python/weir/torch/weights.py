"""The tensors of a PyTorch model that a job trains."""
from __future__ import annotations

import contextlib
import functools
import os
from typing import Iterator, Mapping

import numpy as np
import torch

from .. import job as _job
from ..client import Client
from ..errors import ConfigError
from ..exchange import Weights
from ..job import FlatTensors, Floats, Tensor
from ..tables import Rows
from .device import Gpu, Host, load_each, place_of


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
        self._model = model = original(model)
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ConfigError("the model has no parameter that requires a gradient")
        for name, p in self.parameters.items():
            if p.dtype not in (torch.float32, torch.bfloat16):
                raise ConfigError(f"{name} is {p.dtype}; Weir trains float32 and bfloat16 parameters")
        layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, torch.nn.modules.batchnorm._NormBase)}
        names = {f"{layer}.{name}".lstrip(".") for layer in layers for name in _STATISTICS}
        self.statistics = {name: buffer for name, buffer in model.named_buffers() if name in names}
        # Those of each layer.
        self._of_layers = [(layer, {name: layer._buffers.get(name) for name in _STATISTICS}) for layer in layers.values()]
        # Of the newest step; None: there was none. The parameter of a layer that was replaced has no gradient.
        self._without: set[str] | None = None
        #: Both, in the order of the job's tensors.
        self.all = {**self.parameters, **self.statistics}

    @functools.cached_property
    def place(self) -> Host | Gpu:
        """Where they are; from the first call on."""
        return place_of(self.all)

    def check(self) -> None:
        """ConfigError: the model has other parameters or running statistics than it had, or is no more where it was."""
        self._check_frozen()
        known, now = set(map(id, self.parameters.values())), dict(self._model.named_parameters())
        there = set(map(id, now.values()))
        strange = [name for name, p in now.items() if p.requires_grad and id(p) not in known]
        strange += [name for name, p in self.parameters.items() if id(p) not in there]
        if strange:
            raise ConfigError(f"{strange[0]} is not as it was when the optimizer was made: its layer was replaced, added or "
                              "unfrozen since, and what is new there would not be trained; make the optimizer when the model is "
                              "complete")
        for name, p in self.parameters.items():
            if p.device != self.place.device:
                raise ConfigError(f"{name} is on {p.device}, and was on {self.place.device} when the optimizer was made; move the "
                                  "model before that")
        self._check_statistics()

    def check_again(self) -> None:
        """As check(), for each step: of what can be seen in microseconds, that is parameters that are frozen now, and statistics that
        were replaced in their layers. In the first step, and where other parameters than before are without a gradient, all of it."""
        without = {name for name, p in self.parameters.items() if p.grad is None}
        if without != self._without:
            self._without = without
            return self.check()
        self._check_frozen()
        for layer, buffers in self._of_layers:
            for name, buffer in buffers.items():
                if layer._buffers.get(name) is not buffer:
                    self._check_statistics()

    def none_has_gradient(self) -> bool:
        """Whether no parameter had one in the newest check_again()."""
        return self._without is not None and len(self._without) == len(self.parameters)

    def _check_statistics(self) -> None:
        buffers = dict(self._model.named_buffers())
        for name, buffer in self.statistics.items():
            if buffers.get(name) is not buffer:
                raise ConfigError(f"{name} is not as it was when the optimizer was made: it was replaced since, and what is new there "
                                  "would not be the job's; make the optimizer when the model is complete and has its types")

    def _check_frozen(self) -> None:
        if not all(p.requires_grad for p in self.parameters.values()):
            name = next(name for name, p in self.parameters.items() if not p.requires_grad)
            raise ConfigError(f"{name} was frozen after the optimizer was made, but momentum and weight decay would move it on; freeze "
                              "parameters before the optimizer is made")

    def tensors(self) -> dict[str, Tensor]:
        """As a weir.Client takes them, with the model's values as the initial ones."""
        return {name: Tensor(array.shape, buffer=name in self.statistics, values=array)
                for name, array in self.arrays().items()}

    def arrays(self) -> dict[str, Floats]:
        """The values as float32, each where the model has it if it has it so."""
        return {name: t.detach().float().cpu().numpy() for name, t in self.all.items()}

    def save(self, directory: str | os.PathLike[str]) -> None:
        """As weir.save_weights()."""
        _job.save_weights(directory, self.arrays(), self.statistics)

    @torch.no_grad()
    def load(self, values: FlatTensors) -> None:
        """Copies the values into the model. On a GPU they have arrived when place.wait() has returned."""
        self.place.load(values)

    @contextlib.contextmanager
    def snapshot(self, client: Client, memory: Floats | None = None, rows: Rows | None = None) -> Iterator[Weights]:
        """Within `with`, the model has the newest consistent weights of the job; then its own again. The value is which
        they are. memory: as many floats as the model has, which get the weights as the servers have them. rows: are read
        with them (Client.snapshot())."""
        new = client.model.split(np.empty(client.model.elements, dtype=np.float32) if memory is None else memory)
        weights = client.snapshot(new, rows).result()
        own = {name: array.copy() for name, array in self.arrays().items()}
        self._load_each(new)
        try:
            yield weights
        finally:
            self._load_each(own)

    @torch.no_grad()
    def _load_each(self, values: Mapping[str, Floats]) -> None:
        # One by one: on a GPU the gradients of a batch may be where all values would travel through.
        load_each(self.all.values(), (torch.from_numpy(values[name]) for name in self.all))


def save_weights(model: torch.nn.Module, directory: str | os.PathLike[str]) -> None:
    """Writes the model's parameters and running statistics into a folder for `checkpoint.init_from`: the values that a
    job then begins with. Fails if the folder holds weights already."""
    ModelWeights(model).save(directory)
