"""Which of a model's tensors are a job's, beside the parameters that it trains."""
from __future__ import annotations

import fnmatch
from typing import Callable, Mapping

import torch

from ..errors import ConfigError

#: "job" or "own", by globs over the names of buffers and of frozen parameters.
BufferRules = Mapping[str, str]

# Tables of positions and masks have more values, and would travel with every batch.
_LARGEST = 65_536
# What BatchNorm layers keep. The count is an integer, and travels as a float32.
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class Others:
    """A model's buffers, and its parameters that require no gradient. Some are the job's: it carries their values as it does
    those of the trained parameters. The rest are constants, which nothing may change in training, or this process's own.

    By default the job has the statistics of BatchNorm, and each buffer of floats that is in the model's state_dict(), is finite,
    and has at most 65,536 values. The others are constants.
    """

    def __init__(self, model: torch.nn.Module, rules: BufferRules | None):
        self._model, self._rules = model, dict(rules or {})
        for glob, given in self._rules.items():
            if given not in ("job", "own"):
                raise ConfigError(f"buffers[{glob!r}] must be \"job\" or \"own\", got {given!r}: the servers take the mean of what a "
                                  "step's parts leave in a buffer of the job (in bounded and async the newest), and nothing else")
        found = others(model)
        for glob in self._rules:
            if not any(fnmatch.fnmatchcase(name, glob) for name in found):
                raise ConfigError(f"buffers[{glob!r}] fits none of the model's buffers and frozen parameters: "
                                  f"{', '.join(list(found)[:20]) or 'it has none'}")
        passing, statistics = _not_in_state(model), _statistics(model)
        #: By name, in the model's order.
        self.of_job: dict[str, torch.Tensor] = {}
        self.constants: dict[str, torch.Tensor] = {}
        # Why a tensor is not the job's, and whether "job" could make it so.
        self._reasons: dict[str, tuple[str, bool]] = {}
        for name, tensor in found.items():
            rule = self.rule(name)
            unfit = None if name in statistics else _unfit(tensor)
            if rule == "job" and unfit is not None:
                raise ConfigError(f"{name} cannot be the job's: it {unfit}. Give buffers={{{name!r}: \"own\"}}, before a glob that fits "
                                  "it, too")
            reason = unfit
            if reason is None and name not in statistics:
                reason = _unasked(tensor, name not in passing)
            if rule == "job" or (rule is None and reason is None):
                self.of_job[name] = tensor
            elif rule is None:
                self.constants[name] = tensor
                self._reasons[name] = reason or "", unfit is None

    def rule(self, name: str) -> str | None:
        """What `buffers=` says of it."""
        return next((rule for glob, rule in self._rules.items() if fnmatch.fnmatchcase(name, glob)), None)

    def constants_now(self) -> dict[str, torch.Tensor]:
        """What a model has in place of the constants, which may have other modules by now."""
        return {name: t for name, t in others(self._model).items() if name not in self.of_job and self.rule(name) is None}

    def passing(self) -> set[str]:
        """The buffers that are not in the model's state_dict()."""
        return _not_in_state(self._model)

    def is_new(self, name: str, buffer: torch.Tensor) -> bool:
        """Whether a buffer that was added since might be the job's, if it had been there."""
        known = name in self.of_job or name in self.constants or self.rule(name) == "own"
        return not known and buffer.is_floating_point() and name not in _not_in_state(self._model)

    def changed(self, name: str) -> ConfigError:
        """The error that a constant was changed."""
        reason, fit = self._reasons.get(name, ("was added after the optimizer was made", True))
        remedy = (f"give weir.torch.Optimizer buffers={{{name!r}: \"job\"}}, so that it travels with the weights, or \"own\" where each "
                  "process may have its own" if fit else
                  f"keep such values in a buffer of float32, or give weir.torch.Optimizer buffers={{{name!r}: \"own\"}} where each process "
                  "may have its own")
        return ConfigError(f"{name} was changed in training, and other workers, checkpoints and evaluators would not have the change: "
                           f"it is not the job's, since it {reason}. If it shall change, {remedy}")


def others(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The model's frozen parameters and its buffers, by name, each once; but for sparse and quantized ones, and those of inference_mode()."""
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    return {name: t for name, t in (*frozen.items(), *model.named_buffers())
            if t.layout == torch.strided and not t.is_quantized and not t.is_inference()}


def _statistics(model: torch.nn.Module) -> set[str]:
    layers = [name for name, layer in model.named_modules() if isinstance(layer, torch.nn.modules.batchnorm._NormBase)]
    return {f"{layer}.{name}".lstrip(".") for layer in layers for name in _STATISTICS}


def _not_in_state(model: torch.nn.Module) -> set[str]:
    return {f"{prefix}.{name}".lstrip(".") for prefix, module in model.named_modules() for name in module._non_persistent_buffers_set}


def _unfit(tensor: torch.Tensor) -> str | None:
    """Why the job cannot have this tensor. None: it can."""
    if tensor.dtype == torch.int64 and tensor.numel() == 1:
        return None  # a count
    if tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"is {tensor.dtype}, and the servers have float32 values"
    if tensor.numel() == 0:
        return "has no values"
    if not tensor.is_meta and not bool(torch.isfinite(tensor.detach()).all()):
        return "had values that are not finite when the optimizer was made"
    return None


def _unasked(tensor: torch.Tensor, of_state: bool) -> str | None:
    """Why the job does not have this tensor, which it could have, unless it is asked to."""
    if isinstance(tensor, torch.nn.Parameter):
        return "is a parameter that requires no gradient"
    if not of_state:
        return "is not in the model's state_dict()"
    if not tensor.is_floating_point():
        return f"is {tensor.dtype}"
    return f"has more than {_LARGEST:,} values" if tensor.numel() > _LARGEST else None


class Places:
    """Where a model has certain buffers. forward may put other tensors there (`self.mean = ...`): take_in() copies their values
    into the buffers, and puts these back."""

    def __init__(self, model: torch.nn.Module, buffers: Mapping[str, torch.Tensor]):
        holders: dict[int, list[tuple[dict[str, torch.Tensor | None], str]]] = {}
        for module in model.modules():
            for key, tensor in module._buffers.items():
                if tensor is not None:
                    holders.setdefault(id(tensor), []).append((module._buffers, key))
        self._places = [(name, tensor, holder, key) for name, tensor in buffers.items()
                        for holder, key in holders.get(id(tensor), [])]

    @torch.no_grad()
    def take_in(self, check: Callable[[str, torch.Tensor | None], None]) -> None:
        """check: raises where a tensor cannot take a buffer's place; it is called with each that is there now."""
        for name, tensor, holder, key in self._places:
            found = holder.get(key)
            if found is not tensor:
                check(name, found)
                assert found is not None
                tensor.copy_(found)
                holder[key] = tensor

    def put_back(self) -> None:
        """As take_in(), but the values that are there now go."""
        for _, tensor, holder, key in self._places:
            holder[key] = tensor
