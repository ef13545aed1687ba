"""Where a model's tensors are, and how their values travel between there and the client's memory."""
from __future__ import annotations

import weakref
from collections import deque
from typing import Any, Iterable, Mapping, Optional, Sequence, Tuple

import torch

from ..errors import ConfigError, Error
from ..job import FlatTensors, seed_globals
from ..steps import Step

#: A gradient, or nothing where the parameter has none, and the index of its tensor.
Indexed = Tuple[int, Optional[torch.Tensor]]

# Private, and undocumented, in PyTorch; torch.optim is made of them. Each is one launch on a GPU for many tensors.
_copy_each: Any = getattr(torch, "_foreach_copy_", None)  # PyTorch 2.1


def place_of(tensors: Mapping[str, torch.Tensor]) -> "Host | Gpu":
    """ConfigError: the tensors are neither all on the CPU nor all on one GPU."""
    first, device = next((name, t.device) for name, t in tensors.items())
    for name, t in tensors.items():
        if t.device.type not in ("cpu", "cuda"):
            raise ConfigError(f"{name} is on {t.device}; Weir trains models on the CPU and on NVIDIA GPUs")
        if t.device != device:
            raise ConfigError(f"{name} is on {t.device}, and {first} on {device}; a worker has its model on one device. Start a "
                              "worker for each GPU, and choose it with model.to() or CUDA_VISIBLE_DEVICES")
    return Host(tensors) if device.type == "cpu" else Gpu(tensors, device)


class Host:
    """The tensors are in the host's memory: their values are copied straight from and to that of the client.

    Tensors of whole numbers are counts, which travel as float32.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]):
        self.device = torch.device("cpu")
        self._names, self._tensors = list(tensors), list(tensors.values())

    def load(self, values: FlatTensors) -> None:
        """Copies the values into the tensors."""
        load_each(self._tensors, _as_tensors(values, self._names))

    def loaded(self, step: Step) -> Sequence[torch.Tensor]:
        """The values that load() was given for the step, as float32 on the tensors' device; until send() or finish()."""
        return _as_tensors(step.memory, self._names)

    def send(self, step: Step, index: int, gradient: torch.Tensor) -> None:
        """Copies the gradient of one tensor to step.gradient, from where it may travel before others are made."""
        _as_tensors(step.gradient, self._names)[index].copy_(gradient)
        step.ready(self._names[index])

    def finish(self, step: Step, rest: Iterable[Indexed]) -> int:
        """Copies what was not sent, zeros where there is nothing. All is in step.gradient when this returns. Returns how often there
        was nothing."""
        into = _as_tensors(step.gradient, self._names)
        missing = 0
        for index, value in rest:
            if value is None:
                into[index].zero_()
                missing += 1
            else:
                into[index].copy_(value)
        return missing

    def wait(self) -> None:
        """Returns when the tensors have what load() was given, whose memory may go then."""

    def seed(self, seed: int) -> None:
        """Of the global random numbers: torch's, as far as this model uses them, NumPy's and Python's."""
        seed_on_host(seed)


class Gpu:
    """The same for tensors on a GPU. Between them and the client's memory, which is page-locked, stands flat memory on the GPU: so
    all values travel as one copy, which the GPU makes by itself, in the order of the current stream.

    A gradient that is sent early travels in a stream of its own, beside the rest of backward.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], device: torch.device):
        self.device = device
        self._names, self._tensors = list(tensors), list(tensors.values())
        sizes = [t.numel() for t in self._tensors]
        self._flat = torch.empty(sum(sizes), dtype=torch.float32, device=device)
        self._pieces = [piece.view(t.shape) for piece, t in zip(torch.split(self._flat, sizes), self._tensors)]
        self._loads = [(t, piece) for t, piece in zip(self._tensors, self._pieces) if t.is_floating_point()]
        # Counts, which have one value each, and where they are in the flat memory.
        self._counts = [t for t in self._tensors if not t.is_floating_point()]
        self._counted = torch.tensor([piece.storage_offset() for piece, t in zip(self._pieces, self._tensors)
                                      if not t.is_floating_point()], dtype=torch.int64, device=device)
        self._early_copies: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # The tensors whose gradients were sent early, and those of them that have yet to arrive, in the order in which they do.
        self._sent: set[int] = set()
        self._travelling: deque[tuple[int, Any]] = deque()

    def load(self, values: FlatTensors) -> None:
        # The values stay as they are until finish() or wait() has waited for the GPU.
        self._flat.copy_(_page_locked(values), non_blocking=True)
        _copy_all(self._loads)
        if self._counts:
            _copy_all(list(zip(self._counts, _whole(self._flat[self._counted]).unbind())))

    def loaded(self, step: Step) -> Sequence[torch.Tensor]:
        return self._pieces

    def send(self, step: Step, index: int, gradient: torch.Tensor) -> None:
        self._pieces[index].copy_(gradient)
        self._early_copies.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._early_copies):
            self._copy_out(step, index)
            self._travelling.append((index, self._early_copies.record_event()))
        self._sent.add(index)
        while self._travelling and self._travelling[0][1].query():
            step.ready(self._names[self._travelling.popleft()[0]])

    def finish(self, step: Step, rest: Iterable[Indexed]) -> int:
        rest = list(rest)
        _copy_all([(self._pieces[index], value) for index, value in rest if value is not None and value.is_floating_point()])
        if self._counts:
            self._flat[self._counted] = torch.stack(self._counts).float()
        missing = [index for index, value in rest if value is None]
        for index in missing:
            self._pieces[index].zero_()
        if self._sent:
            for index, _ in rest:
                self._copy_out(step, index)
        else:
            _page_locked(step.gradient).copy_(self._flat, non_blocking=True)
        while self._travelling:
            index, arrived = self._travelling.popleft()
            arrived.synchronize()
            step.ready(self._names[index])
        self._sent.clear()
        self.wait()
        return len(missing)

    def wait(self) -> None:
        stream: Any = torch.cuda.current_stream(self.device)
        stream.synchronize()

    def seed(self, seed: int) -> None:
        seed_on_host(seed)
        torch.cuda.default_generators[self.device.index].manual_seed(seed)

    def _copy_out(self, step: Step, index: int) -> None:
        piece = self._pieces[index]
        _page_locked(step.gradient)[piece.storage_offset():][:piece.numel()].copy_(piece.view(-1), non_blocking=True)


def seed_on_host(seed: int) -> None:
    """Of the global random numbers of torch on the CPU, NumPy and Python."""
    # torch.manual_seed() takes as long as a small step, for devices that are not used.
    torch.default_generator.manual_seed(seed)
    seed_globals(seed)


def difference_of(base: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """What local steps have taken away from the float32 values `base`, which the parameter had in its own type. On the device of both."""
    result: torch.Tensor = base.to(parameter.dtype).float() - parameter.detach().float()
    return result


def load_each(tensors: Iterable[torch.Tensor], values: Iterable[torch.Tensor]) -> None:
    """Copies the values, of the CPU, into the tensors, wherever they are."""
    for t, value in zip(tensors, values):
        t.copy_(value if t.is_floating_point() else _whole(value))


def _whole(counts: torch.Tensor) -> torch.Tensor:
    # The mean of counts that are equal may not be one to the last bit.
    whole: torch.Tensor = counts.round().long()
    return whole


def _copy_all(copies: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """(to, from) each: those of the same types are one launch."""
    if _copy_each is None:
        for to, value in copies:
            to.copy_(value)
        return
    kinds = {(to.dtype, value.dtype) for to, value in copies}
    for kind in kinds:
        alike = copies if len(kinds) == 1 else [pair for pair in copies if (pair[0].dtype, pair[1].dtype) == kind]
        _copy_each([to for to, _ in alike], [value for _, value in alike])


def _as_tensors(memory: FlatTensors, names: Iterable[str]) -> Sequence[torch.Tensor]:
    """The memory's arrays, whose names these are, as tensors of the same memory; made once, since it is used again and again."""
    if memory.converted is None:
        memory.converted = [torch.from_numpy(memory[name]) for name in names]
    return memory.converted  # type: ignore[no-any-return]


def _page_locked(memory: FlatTensors) -> torch.Tensor:
    """All of the memory, page-locked as long as it is there."""
    if memory.converted is None:
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        address = memory.flat.ctypes.data
        error = runtime.cudaHostRegister(address, memory.flat.nbytes, 0)
        if int(error) != 0:
            raise Error(f"the driver of the GPU cannot lock {memory.flat.nbytes} bytes of this process's memory for copies: "
                        f"{runtime.cudaGetErrorString(error)}")
        weakref.finalize(memory, runtime.cudaHostUnregister, address).atexit = False
        memory.converted = torch.from_numpy(memory.flat)
    return memory.converted  # type: ignore[no-any-return]
