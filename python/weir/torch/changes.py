"""Notices that a program changes, in the loop, what is the servers' to change."""
from __future__ import annotations

import ctypes
import operator
from typing import Any, Collection, Mapping, Sequence

import torch

from ..errors import ConfigError
from ..job import FlatTensors
from .device import difference_of
from .weights import ModelWeights

_get: Any = dict.get
_version = operator.attrgetter("_version")
_pointer = torch.Tensor.data_ptr

# Without letting other threads run, which would take longer than the call.
_memcmp: Any = ctypes.PyDLL(None).memcmp
_memcmp.argtypes, _memcmp.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int

# The most bytes that a look compares.
_WINDOW = 8192

# After the first batches, one batch of so many pays for a sample of the values, and one for a look at the modules, which are also
# looked at when other gradients are missing than in the batch before.
_FIRST, _EVERY = 64, 8


class Changes:
    """Looks twice in a batch, for some microseconds: before the gradients go, and before the next batch. ConfigError: a trained
    parameter has other values than the batch began with; a buffer of the job has others than step() has sent; a constant has
    changed; or the model has other modules or tensors, or tensors of other types. Values that are back when it looks are right.

    It sees all that torch counts as an operation in place, and memory that was replaced (`p.data = ...`). Of what torch does not
    count (`p.data.clamp_()`) it sees what falls into a sample, which moves on with each of the first batches, then with every eighth.

    With local steps the program may change parameters until the push, and until then buffers at any time.
    """

    def __init__(self, weights: ModelWeights, is_local: bool = False):
        self._weights = weights
        self._parameters: Known | Stepped = Stepped(weights) if is_local else Known(weights.parameters, 0)
        self._buffers = Known(weights.buffers, len(weights.parameters))
        self._batches, self._missing = 0, -1
        self._learn()

    def loaded(self, values: FlatTensors) -> None:
        """The parameters have these values, whose memory stays as it is until the next call of this."""
        self._parameters.loaded(values)

    def check(self) -> None:
        """Before the gradients of a batch go, or a local step."""
        self._weights.check_frozen()
        if self._places.keys:
            self._take_in()
        if isinstance(self._parameters, Known):
            self._refuse(self._parameters.changed_in_place())
        if self._constants.tensors:
            self._refuse_constant(self._constants.changed_in_place())

    def sent(self, values: FlatTensors, missing: int) -> None:
        """These values of the job's buffers, and with local steps differences of parameters, go to the servers; their memory stays as it
        is until the next call of loaded(). missing: how many parameters have no gradient."""
        if self._buffers.tensors:
            self._buffers.expect(values)
        if isinstance(self._parameters, Stepped):
            self._parameters.pushed(values)
        # Those of a layer that was replaced have none.
        if missing != self._missing or self._batches % _EVERY == 0:
            self._missing = missing
            if not (self._modules.same() and self._modules.complete() and self._places.complete()):
                self._learn_anew()
        self._batches += 1

    def check_after(self) -> None:
        """Before the next batch."""
        sample = self._batches <= _FIRST or self._batches % _EVERY == 0
        self._refuse(self._parameters.changed(sample))
        if self._places.keys:
            self._take_in()
        if self._buffers.tensors:
            self._refuse_buffer(self._buffers.changed(sample))
        if self._constants.tensors:
            self._refuse_constant(self._constants.changed(sample))

    def _refuse(self, parameter: str | None) -> None:
        if parameter is not None:
            self._weights.check()
            raise ConfigError(f"{parameter} was changed in the loop, but the servers have the weights, and the next batch would begin "
                              "without the change. To limit weights set optimizer.clip_weights of the job, or of one of its optimizer.groups. "
                              "To evaluate other weights put those of the batch back before the next one, bit for bit; opt.snapshot() "
                              "does so. Initial weights go into the model before the loop")

    def _refuse_buffer(self, buffer: str | None) -> None:
        if buffer is not None:
            self._weights.check()
            raise ConfigError(f"{buffer} was changed after step(), which had sent its values, so that the change would be lost. Change it "
                              "before step(), or put its values back before the next batch; a forward that shall not count needs "
                              "model.eval()")

    def _refuse_constant(self, constant: str | None) -> None:
        if constant is not None:
            raise self._weights.others.changed(constant)

    def _take_in(self) -> None:
        # forward may put other tensors in the places of buffers.
        if not self._places.same():
            self._weights.take_in()
            if not self._places.same():
                self._learn_anew()

    def _learn(self) -> None:
        model, others = self._weights.model, self._weights.others
        modules = list(model.modules())
        self._modules = _Entries([entries for m in modules for entries in (m._modules, m._parameters)])
        own = {id(t) for name, t in model.named_buffers() if others.rule(name) == "own"}
        self._places = _Entries([m._buffers for m in modules], own)
        self._constants = Constants(others.constants)

    def _learn_anew(self) -> None:
        """The model has other modules or buffers. It may, where they are not the job's, and constants keep their values."""
        self._weights.check()
        others = self._weights.others
        now = others.constants_now()
        self._refuse_constant(self._constants.has_other_values(now, others.passing()))
        others.constants = now
        self._learn()


class _Entries:
    """What is in the dicts of a model's modules. Those of `but`, by id(), may become others."""

    def __init__(self, dicts: Sequence[Mapping[str, object]], but: Collection[int] = ()):
        entries = [(of, key, value) for of in dicts for key, value in of.items() if id(value) not in but]
        self._of, self.keys, self._values = ([entry[i] for entry in entries] for i in range(3))
        self._filled, self._empty = [of for of in dicts if of], [of for of in dicts if not of]
        self._lengths = list(map(len, self._filled))

    def same(self) -> bool:
        """Whether what was there is there."""
        return all(map(operator.is_, map(_get, self._of, self.keys), self._values))

    def complete(self) -> bool:
        """Whether there is as much as there was."""
        return not any(self._empty) and list(map(len, self._filled)) == self._lengths


# ---- whether tensors have the values that they should have, found out in microseconds


class _Watch:
    """A look sees operations in place, which torch counts, and other memory; then it compares all values. Beside that it may
    compare a sample."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]):
        self._names, self.tensors = list(tensors), list(tensors.values())
        self._kinds = [_kind(t) for t in self.tensors]
        # The addresses of the expected values, where memory can be compared with memory, and where there that of the first tensor is.
        self._expected_at: Any = ()
        self._first = 0
        # What samples have come to: of the tensors that are compared as memory, and of the others.
        self._turn = self._round = self._rows = 0
        self._settle()

    def changed_in_place(self) -> str | None:
        """The name of a tensor that has other values than it should, after an operation that torch counts."""
        return None if sum(map(_version, self.tensors)) == self._versions else self.changed(sample=False)

    def changed(self, sample: bool) -> str | None:
        """The name of one whose other values are seen, with all that a look sees. sample: compares some values of some tensors."""
        if sum(map(_version, self.tensors)) == self._versions and list(map(_pointer, self.tensors)) == self._pointers:
            if not sample or self._is_sample_right():
                return None
        for i, tensor in enumerate(self.tensors):
            if _kind(tensor) != self._kinds[i] or not self._is_right(i):
                return self._names[i]
        self._settle()
        return None

    def _settle(self) -> None:
        """All tensors are as they should be, where they are now."""
        # Versions grow with each operation in place, so that their sum says as much as they do.
        self._versions, self._pointers = sum(map(_version, self.tensors)), list(map(_pointer, self.tensors))
        of_memory = [(i, self._pointers[i], self._bytes(i)) for i in range(len(self.tensors))]
        self._memory = [entry for entry in of_memory if entry[2] > 0]
        self._rest = [i for i, _, size in of_memory if size == 0 and self._has_rows(i)]

    def _is_sample_right(self) -> bool:
        """Whether a part of the next tensor in turn, or all of it, has the expected values."""
        if self._memory:
            if self._turn >= len(self._memory):
                self._turn, self._round = 0, self._round + 1
            i, address, size = self._memory[self._turn]
            self._turn += 1
            offset = 0 if size <= _WINDOW else self._round * _WINDOW % size
            expected = self._expected_at[self._first + i] + offset
            if _memcmp(address + offset, expected, min(_WINDOW, size - offset)):
                return False
        if self._rest:
            row, turn = divmod(self._rows, len(self._rest))
            self._rows += 1
            return self._is_row_right(self._rest[turn], row)
        return True

    def _bytes(self, index: int) -> int:
        """How much of a tensor can be compared as memory; 0: nothing."""
        raise NotImplementedError

    def _has_rows(self, index: int) -> bool:
        """Whether a sample has rows of a tensor that cannot be."""
        return bool(self.tensors[index].numel() > 0)

    def _is_right(self, index: int) -> bool:
        """Whether a tensor has all the expected values."""
        raise NotImplementedError

    def _is_row_right(self, index: int, row: int) -> bool:
        """Whether it has those of one row. Any number is that of some row."""
        raise NotImplementedError


class Known(_Watch):
    """All expected values are in the client's memory, as float32."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], first: int):
        """first: the place of the first tensor among those of the job; the others follow on it."""
        super().__init__(tensors)
        self._first = first
        self._values: FlatTensors | None = None
        # By how much a load of all tensors raises the sum of their versions.
        self._load: int | None = None

    def expect(self, values: FlatTensors) -> None:
        """The tensors have these values now, which stay as they are until the next call."""
        self._versions = sum(map(_version, self.tensors))
        self._values, self._expected_at = values, values.pointers

    def loaded(self, values: FlatTensors) -> None:
        """As expect(), when just a load of all tensors came after a look."""
        before = self._versions
        if self._load is None:
            self.expect(values)
            self._load = self._versions - before
        else:
            self._versions = before + self._load
            self._values, self._expected_at = values, values.pointers

    def _bytes(self, index: int) -> int:
        t = self.tensors[index]
        return t.numel() * 4 if _is_plain(t) and t.dtype == torch.float32 else 0

    def _has_rows(self, index: int) -> bool:
        # On a GPU a row takes some 20 us, in which it does nothing else.
        return bool(self.tensors[index].numel() > 0 and self.tensors[index].requires_grad)

    def _is_right(self, index: int) -> bool:
        return _equal(self.tensors[index].detach(), self._expected(index))

    def _is_row_right(self, index: int, row: int) -> bool:
        return _equal(_row(self.tensors[index], row), _row(self._expected(index), row))

    def _expected(self, index: int) -> torch.Tensor:
        assert self._values is not None
        return torch.from_numpy(self._values[self._names[index]])


class Stepped(_Watch):
    """Parameters that local steps have moved: after the push they are what it has taken from the loaded values."""

    def __init__(self, weights: ModelWeights):
        super().__init__(weights.parameters)
        self._base: FlatTensors | None = None
        self._difference: FlatTensors | None = None

    def loaded(self, values: FlatTensors) -> None:
        """As Known.loaded()."""
        self._base = values

    def pushed(self, difference: FlatTensors) -> None:
        """The push has these differences; the memory stays as it is until the next call of loaded()."""
        self._difference = difference
        self._settle()

    def _bytes(self, index: int) -> int:
        return 0

    def _has_rows(self, index: int) -> bool:
        return False  # to compute differences takes longer than a look may

    def _is_right(self, index: int) -> bool:
        assert self._base is not None and self._difference is not None
        name, tensor = self._names[index], self.tensors[index]
        base = torch.from_numpy(self._base[name]).to(tensor.device)
        return _equal(difference_of(base, tensor), torch.from_numpy(self._difference[name]))


class Constants(_Watch):
    """The expected values are those that the tensors have at first. Of these a sum over the bits is known, and a part of the
    values."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]):
        self._sums = [_sum_of_bits(t) for t in tensors.values()]
        self._parts = [(t.detach().view(-1)[:_WINDOW // t.element_size()] if _is_plain(t) else _row(t, 0)).clone()
                       for t in tensors.values()]
        super().__init__(tensors)
        self._expected_at = [part.data_ptr() for part in self._parts]

    def has_other_values(self, now: Mapping[str, torch.Tensor], passing: Collection[str]) -> str | None:
        """A tensor in whose place is another one, of other values. Those of `passing` may have other shapes there."""
        for name, tensor, total in zip(self._names, self.tensors, self._sums):
            other = now.get(name, tensor)
            if other is not tensor and not (name in passing and other.shape != tensor.shape) and (
                    _kind(other) != _kind(tensor) or _sum_of_bits(other) != total):
                return name
        return None

    def _bytes(self, index: int) -> int:
        part = self._parts[index]
        return part.numel() * part.element_size() if _is_plain(self.tensors[index]) else 0

    def _is_right(self, index: int) -> bool:
        return bool(_sum_of_bits(self.tensors[index]) == self._sums[index])

    def _is_row_right(self, index: int, row: int) -> bool:
        part = self._parts[index]
        now = self.tensors[index].detach()
        return _equal(now if now.shape == part.shape else _row(now, 0), part)


def _is_plain(tensor: torch.Tensor) -> bool:
    return bool(tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.numel() > 0)


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, tensor.device


def _row(tensor: torch.Tensor, row: int) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor if tensor.dim() == 0 or len(tensor) == 0 else tensor[row % len(tensor)]


def _equal(tensor: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether it has the expected values, rounded to its type."""
    if tensor.dtype != expected.dtype and not tensor.is_floating_point():
        tensor = tensor.float()
    tensor, expected = tensor.cpu(), expected.to("cpu", tensor.dtype)
    return bool(torch.equal(tensor, expected)) or bool(torch.allclose(tensor, expected, rtol=0, atol=0, equal_nan=True))


def _sum_of_bits(tensor: torch.Tensor) -> int:
    """Differs where values do, but for those that only change places."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(tensor.element_size())
    return int(tensor.detach().view(bits).sum()) if bits is not None and tensor.numel() > 0 else 0
