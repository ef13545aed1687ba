"""Whether tensors have the values that they should have, found out in microseconds."""
from __future__ import annotations

import ctypes
import operator
from typing import Any, Collection, Mapping

import torch

from ..job import FlatTensors

_version = operator.attrgetter("_version")
_pointer = torch.Tensor.data_ptr

# Without letting other threads run, which would take longer than the call.
_memcmp: Any = ctypes.PyDLL(None).memcmp
_memcmp.argtypes, _memcmp.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int

# The most bytes that a look compares.
_WINDOW = 8192


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
