"""The tensors of a PyTorch model that a job trains, under the names that the plain model has for them."""
from __future__ import annotations

import contextlib
import functools
import operator
import os
from typing import Any, Generator, Iterator, Mapping

import numpy as np
import torch

from .. import job as _job
from ..client import Client
from ..errors import ConfigError
from ..exchange import Weights
from ..job import FlatTensors, Floats, Tensor
from ..tables import Rows
from .buffers import BufferRules, Others, Places
from .device import Gpu, Host, load_each, place_of

_requires_grad = operator.attrgetter("requires_grad")

# Where wrappers have the module that they wrap: torch.compile(), checkpoint_wrapper() and FullyShardedDataParallel.
_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
# These, and their like in other packages, have it as "module", which a model of the user's may have, too.
_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")


class ModelWeights:
    """The tensors of a model that are a job's: the parameters that require a gradient, and the buffers of Others. Shared ones
    once."""

    def __init__(self, model: torch.nn.Module, buffers: BufferRules | None = None):
        #: The model, whose tensors have these names.
        self.model = model = PlainModel(model)
        self._aliases = model.aliases()
        for name, t in (*model.named_parameters(), *model.named_buffers()):
            if torch.nn.parameter.is_lazy(t):
                raise ConfigError(f"{name} has no shape yet, since its module is lazy; call the model once, and make the optimizer then")
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
        if not self.parameters:
            raise ConfigError("the model has no parameter that requires a gradient")
        for name, p in self.parameters.items():
            if p.dtype not in (torch.float32, torch.bfloat16):
                raise ConfigError(f"{name} is {p.dtype}; Weir trains float32 and bfloat16 parameters")
        #: Which buffers, and frozen parameters, are the job's.
        self.others = Others(model, buffers)
        #: Running statistics, and whatever else training changes: a push has their new values.
        self.buffers = self.others.of_job
        #: Parameters and buffers, in the order of the job's tensors.
        self.all = {**self.parameters, **self.buffers}
        refuse_shared_memory(self.all, self.others.constants)
        self._places = Places(model, self.buffers)
        self._forms = {name: _form(t) for name, t in self.all.items()}

    @functools.cached_property
    def place(self) -> Host | Gpu:
        """Where they are; from the first call on."""
        return place_of(self.all)

    def check(self) -> None:
        """ConfigError: the model has other tensors than it had, or a tensor of the job is not as it was. Buffers that forward has
        replaced are put back, with their new values."""
        self.check_frozen()
        known, now = set(map(id, self.all.values())), dict(self.model.named_parameters())
        there = set(map(id, now.values()))
        strange = [name for name, p in now.items() if p.requires_grad and id(p) not in known]
        strange += [name for name, p in self.all.items() if isinstance(p, torch.nn.Parameter) and id(p) not in there]
        if strange:
            raise _not_as_it_was(strange[0], "its layer was replaced, added or unfrozen since, and what is new there would not be trained")
        for name, t in self.all.items():
            self._check_form(name, t)
        refuse_shared_memory(self.all, self.others.constants)
        self.take_in()
        buffers = dict(self.model.named_buffers())
        for name, t in self.buffers.items():
            if not isinstance(t, torch.nn.Parameter) and buffers.get(name) is not t:
                raise _not_as_it_was(name, "its module was replaced since, and what is new there would not be the job's")
        for name, t in buffers.items():
            if self.others.is_new(name, t):
                raise _not_as_it_was(name, "it was added since, and would not be the job's")

    def check_frozen(self) -> None:
        """ConfigError: a parameter was frozen, or a frozen one is so no more."""
        if not all(map(_requires_grad, self.parameters.values())):
            name = next(name for name, p in self.parameters.items() if not p.requires_grad)
            raise ConfigError(f"{name} was frozen after the optimizer was made, but momentum and weight decay would move it on; freeze "
                              "parameters before the optimizer is made")
        if self._frozen and any(map(_requires_grad, self._frozen.values())):
            name = next(name for name, p in self._frozen.items() if p.requires_grad)
            raise _not_as_it_was(name, "it was unfrozen since, and would not be trained")

    def take_in(self) -> None:
        """Makes the values of the job's buffers those that forward has left: it may have put other tensors in their places."""
        self._places.take_in(self._check_form)

    def _check_form(self, name: str, now: torch.Tensor | None) -> None:
        if now is None:
            raise _not_as_it_was(name, "it was removed since")
        for was, seen in zip(self._forms[name], _form(now)):
            if seen != was:
                raise _not_as_it_was(name, f"it is {seen} now, and was {was}")

    def tensors(self) -> dict[str, Tensor]:
        """As a weir.Client takes them, with the model's values as the initial ones."""
        return {name: Tensor(array.shape, buffer=name in self.buffers, values=array, aliases=tuple(self._aliases[id(self.all[name])]))
                for name, array in self.arrays().items()}

    def arrays(self) -> dict[str, Floats]:
        """The values as float32, each where the model has it if it has it so."""
        return {name: t.detach().float().cpu().numpy() for name, t in self.all.items()}

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
        with self.showing(new):
            yield weights

    @contextlib.contextmanager
    def showing(self, values: Mapping[str, Floats]) -> Iterator[None]:
        """Within `with`, the model has these values; then its own again."""
        self.take_in()
        own = {name: array.copy() for name, array in self.arrays().items()}
        self._load_each(values)
        try:
            yield
        finally:
            self._places.put_back()
            self._load_each(own)

    @torch.no_grad()
    def _load_each(self, values: Mapping[str, Floats]) -> None:
        # One by one: on a GPU the gradients of a batch may be where all values would travel through. `data`, since the values that
        # forward has used come back: backward() after a snapshot must not take them for others.
        load_each((t.data for t in self.all.values()), (torch.from_numpy(values[name]) for name in self.all))


def _form(tensor: torch.Tensor) -> tuple[str, str, str]:
    return str(tensor.dtype), f"of shape {tuple(tensor.shape)}", f"on {tensor.device}"


def _not_as_it_was(name: str, why: str) -> ConfigError:
    return ConfigError(f"{name} is not as it was when the optimizer was made: {why}; make the optimizer when the model is complete, "
                       "and has its types and device")


def save_weights(model: torch.nn.Module, directory: str | os.PathLike[str], buffers: BufferRules | None = None) -> None:
    """Writes the tensors of a model that a job has, its parameters and buffers, into a directory for `checkpoint.init_from`: the values
    that a job then begins with. buffers: as of Optimizer, and the same. Fails if the folder holds weights already."""
    weights = ModelWeights(model, buffers)
    _job.save_weights(directory, weights.arrays(), weights.buffers)


# ---- names


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


# ---- tensors that lie in the same memory


def refuse_shared_memory(of_job: Mapping[str, torch.Tensor], others: Mapping[str, torch.Tensor]) -> None:
    """ConfigError: two values of the job's tensors, or one of these and one of another tensor, are in the same place. The servers
    would have two tensors where the model has one. Tensors that lie in one memory without a common place are two."""
    of_job, others = ({name: t for name, t in some.items() if t.layout == torch.strided and not t.is_meta and t.numel() > 0}
                      for some in (of_job, others))
    for name, tensor in of_job.items():
        if _overlaps_itself(tensor):
            raise ConfigError(f"{name} has several of its {tensor.numel()} values in one place of the memory: it was expanded, or is a "
                              "window over a smaller tensor. Make it of the values that differ, and expand it in forward()")
    # By where they begin: each can overlap those alone that have not ended there.
    everything = sorted(((*_extent(tensor), name, tensor) for name, tensor in {**of_job, **others}.items()),
                        key=lambda entry: entry[:2])
    before: list[tuple[int, str, torch.Tensor]] = []
    for begin, end, name, tensor in everything:
        before = [entry for entry in before if entry[0] > begin]
        for _, other, of in before:
            if (name in of_job or other in of_job) and tensor.device == of.device and _overlap(of, tensor):
                raise ConfigError(f"{other} and {name} are two tensors in the same memory, where a change of one is a change of the "
                                  "other, but on the servers they would be apart. To tie parameters give both layers the same "
                                  "Parameter object (decoder.weight = encoder.weight); make a view of it, such as its transpose, in "
                                  "forward()")
        before.append((end, name, tensor))


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of its first byte and behind its last one."""
    begin = tensor.data_ptr()
    return begin, begin + _span(tensor) * tensor.element_size()


def _span(tensor: torch.Tensor) -> int:
    """The elements from its first to its last one in memory, with what lies between them."""
    return 1 + sum((int(n) - 1) * int(stride) for n, stride in zip(tensor.shape, tensor.stride()))


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    reach = 0
    for stride, n in sorted((stride, n) for n, stride in zip(tensor.shape, tensor.stride()) if n > 1):
        if stride <= reach:
            return bool(_places(tensor, 0, _span(tensor)).sum() < tensor.numel())
        reach += (n - 1) * stride
    return False


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors, of which `a` begins first and ends behind the beginning of `b`, have a place in common."""
    if a.element_size() != b.element_size():
        return True
    apart = (b.data_ptr() - a.data_ptr()) // a.element_size()
    length = max(_span(a), apart + _span(b))
    return bool((_places(a, 0, length) & _places(b, apart, length)).any())


def _places(tensor: torch.Tensor, begin: int, length: int) -> torch.Tensor:
    """Of `length` elements of memory, which the tensor's are; it begins at `begin`."""
    marks = torch.zeros(length, dtype=torch.bool)
    marks.as_strided(tensor.shape, tensor.stride(), begin).fill_(True)
    return marks
