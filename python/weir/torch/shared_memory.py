"""Tensors of a model that lie in the same memory."""
from __future__ import annotations

from typing import Mapping

import torch

from ..errors import ConfigError


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
