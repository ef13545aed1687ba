"""The names of a model's tensors, as the plain model has them, without those of wrappers around it or its parts."""
from __future__ import annotations

from typing import Any, Generator, Iterator

import torch

from ..errors import ConfigError

# Where wrappers have the module that they wrap: torch.compile(), checkpoint_wrapper() and FullyShardedDataParallel.
_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
# These, and their like in other packages, have it as "module", which a model of the user's may have, too.
_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")


class PlainModel(torch.nn.Module):
    """A view of a model: its own modules, parameters and buffers, under the names that they have in the plain model's
    state_dict(). ConfigError: `model` is no module."""

    def __init__(self, model: torch.nn.Module):
        if not isinstance(model, torch.nn.Module):
            raise ConfigError(f"model must be the torch.nn.Module itself, got {type(model).__name__}; give model, not "
                              "model.parameters()")
        super().__init__()
        # Not as a module of this one.
        self.__dict__["_model"] = model

    def named_modules(self, memo: Any = None, prefix: str = "",
                      remove_duplicate: bool = True) -> Generator[tuple[str, torch.nn.Module], None, None]:
        yield from _walk(self.__dict__["_model"], set() if memo is None else memo, prefix, remove_duplicate)

    def aliases(self) -> dict[int, list[str]]:
        """By id() of the parameter or buffer: its names but the first, in the model's order."""
        names: dict[int, list[str]] = {}
        for prefix, module in self.named_modules(remove_duplicate=False):
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is not None:
                    of = names.setdefault(id(tensor), [])
                    full = f"{prefix}.{name}".lstrip(".")
                    if full not in of:
                        of.append(full)
        return {tensor: of[1:] for tensor, of in names.items()}


def _walk(module: torch.nn.Module, memo: set[torch.nn.Module], prefix: str,
          remove_duplicate: bool) -> Iterator[tuple[str, torch.nn.Module]]:
    if module in memo:
        return
    if remove_duplicate:
        memo.add(module)
    yield prefix, module
    for name, child in module._modules.items():
        if child is not None:
            yield from _walk(child, memo, prefix if _wraps(module, name) else f"{prefix}.{name}".lstrip("."), remove_duplicate)


def _wraps(module: torch.nn.Module, name: str) -> bool:
    return name in _WRAPPED or name == "module" and any(cls.__name__ in _WRAPPERS for cls in type(module).__mro__)
