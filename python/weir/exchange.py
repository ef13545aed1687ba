"""What a worker exchanges with the servers: work, gradients and weights."""
from __future__ import annotations

import bisect
import ctypes
import itertools
import weakref
from dataclasses import dataclass, replace
from typing import Any, Iterator, Mapping, Optional

import numpy as np

from . import _library
from ._library import Owner, library
from .errors import ConfigError, check
from .future import Future, Memory
from .job import Arrays, FlatTensors, Floats, Model
from .metrics import number_of
from .tables import PlacedRows, Rows, Tables


@dataclass(frozen=True)
class Work:
    """One gradient to compute: the mean over the examples at positions [first_example, first_example + examples) of
    the job's stream of examples (ExampleOrder says which these are).

    clock: the weights to compute it from. part: in sync, which part of the step. batch: its number in the job.
    last_of_clock: there is no more work at this clock, as far as is known. examples_left: the job's examples from the
    first one on.

    With local.steps of the job a work has data.batch_size examples for each of them, and what is pushed is what the steps
    have taken away from the weights.
    """

    clock: int
    batch: int
    first_example: int
    examples: int
    examples_left: int
    part: int
    last_of_clock: bool

    def batches(self, size: int) -> Iterator[Work]:
        """The batches of `size` examples of which this work consists, in their order; the job's last one may have fewer. Their numbers
        count all batches of that size."""
        for offset in range(0, self.examples, size):
            first = self.first_example + offset
            yield replace(self, batch=first // size, first_example=first, examples=min(size, self.examples - offset),
                          examples_left=self.examples_left - offset)

    @staticmethod
    def of(work: _library.Work) -> Work:
        """A work that the library has given; for Weir itself."""
        return Work(work.clock, work.batch, work.first_example, work.examples, work.examples_left, work.part,
                    bool(work.last_of_clock))

    def to_library(self) -> _library.Work:
        """As the library takes it; for Weir itself."""
        return _library.Work(self.clock, self.batch, self.first_example, self.examples, self.examples_left, self.part,
                             self.last_of_clock)


@dataclass(frozen=True)
class Pushed:
    """What became of a push. applied: on every server; otherwise it was disposed of, and `reason` says why.
    staleness: the most updates that any server applied between the pull and this push."""

    applied: bool
    staleness: int
    reason: str


class Weights(Owner):
    """Which weights a pull has brought; the base of a push.

    past: the step is past and these are no usable weights (sync): ask for work again. version: updates since the
    start; in sync the step.
    """

    _free = library.free_weights

    def __init__(self, handle: int, model: Model):
        self._handle = handle
        self._model = model
        self.past = bool(library.weights_past(handle))
        self.version = int(library.weights_version(handle))


class View(Weights):
    """Weights that are read where the servers have them, read-only. view["name"] is an array without a copy if the
    tensor lies in one piece (always with one server), else a copy. A server keeps the version until the view and its
    arrays are gone, so hold one at a time."""

    def __getitem__(self, name: str) -> Floats:
        tensor = self._model.names.index(name)
        pieces: list[Floats] = []
        address, n = ctypes.c_void_p(), ctypes.c_size_t()
        while library.weights_piece(self._handle, tensor, len(pieces), ctypes.byref(address), ctypes.byref(n)):
            pieces.append(np.asarray(Memory(address.value or 0, n.value, self, read_only=True)))
        return (pieces[0] if len(pieces) == 1 else np.concatenate(pieces)).reshape(self._model.shapes[tensor])


class Gradient(FlatTensors):
    """Memory for one gradient (Client.new_gradient()): gradient["name"] is the tensor's array, and `flat` all of them
    end to end. Uninitialised. If a push of it fails, do not write to it again."""

    def __init__(self, handle: int, address: int, model: Model):
        super().__init__(model, np.asarray(Memory(address, model.elements, _GradientMemory(handle), read_only=False)))


class Gate(Owner):
    """Lets a push begin before its gradient is complete (Client.new_gate()): each piece of the gradient travels once
    the tensors in it are ready. A gate is for one push; all tensors must be ready within cluster.wait_seconds after
    the push has begun. A gate that goes away before that fails its push, which leaves no trace."""

    _free = library.free_gate

    def __init__(self, model: Model):
        self._indices = {name: i for i, name in enumerate(model.names)}
        self._handle = library.new_gate()

    def ready(self, name: str) -> None:
        """The tensor of this name holds its gradient, and does not change until the push's future is done. Returns at once."""
        if name not in self._indices:
            raise ConfigError(f"the model has no tensor {name!r}; it has {', '.join(list(self._indices)[:10])}")
        library.gate_ready(self._handle, self._indices[name])

    def fail(self, reason: str) -> None:
        """Ends the push with this reason, and without a trace, unless all tensors are ready."""
        library.gate_fail(self._handle, reason.encode())


class _GradientMemory(Owner):
    """Goes when the last array of a gradient is gone."""

    _free = library.free_gradient

    def __init__(self, handle: int):
        self._handle = handle


def push_order(model: Model, tables: Tables, work: Work, base: Weights, gradient: Arrays, gate: Gate | None,
               rows: Rows | None, weight: Any) -> tuple[_library.Push, Any, PlacedRows]:
    """What the library takes, the memory that it uses until the exchange has ended, and what it reads before the call returns.
    ConfigError: an argument is wrong."""
    for given, kind, wanted in ((work, Work, "work must be what next_work() returns"),
                                (base, Weights, "base must be the Weights that the gradient was computed from"),
                                (gradient, Mapping, "the gradient must be arrays by name")):
        if not isinstance(given, kind):
            raise ConfigError(f"push: {wanted}, got {type(given).__name__}")
    heavy = 0.0 if weight is None else number_of(weight, "push: weight must be one number")
    if weight is not None and heavy == 0:
        raise ConfigError("push: weight must be above 0, and finite; got 0")
    arrays, pointers = model.place(gradient, "push", writeable=False)
    placed = tables.place(rows, "push", writeable=False)
    return _library.Push(ctypes.pointer(work.to_library()), base._handle, pointers, None if gate is None else gate._handle,
                         placed.array, len(placed), heavy), arrays, placed


def pull_order(model: Model, tables: Tables, clock: int, into: Arrays | None, rows: Rows | None,
               in_place: bool = False) -> tuple[_library.Pull, Any]:
    """As push_order(), but for what is read."""
    arrays, pointers = (None, None) if into is None else model.place(into, "pull", writeable=True)
    placed = tables.place(rows, "pull", writeable=True)
    return _library.Pull(clock, in_place, pointers, placed.array, len(placed)), (arrays, placed)


def take_exchange(future: int, model: Model, in_place: bool) -> tuple[Pushed, Weights]:
    """The result of an exchange with the servers; no Weights, if it had no pull."""
    pushed, weights = _library.Pushed(), ctypes.c_void_p()
    check(library.take_exchange(future, ctypes.byref(pushed), ctypes.byref(weights)))
    brought = (View if in_place else Weights)(weights.value, model) if weights.value else None
    return (Pushed(bool(pushed.applied), pushed.staleness, pushed.reason.decode(errors="replace")), brought)  # type: ignore[return-value]


class WorkCalls:
    """The library gives work to a call also when nobody waits for it any more; so a later call continues it.

    Thread-safe: finalizers come here too, in any thread, so there are single operations in place of a lock.
    """

    def __init__(self) -> None:
        #: A call has found that there is no more work.
        self.finished = False
        self._ended = False
        # Those whose results were not taken, with their numbers and in their order.
        self._unanswered: list[tuple[int, int]] = []
        self._numbers = itertools.count()

    def begin(self, client: int) -> WorkCall:
        """client: the library's, in this membership."""
        try:
            number, handle = self._unanswered.pop(0)
        except IndexError:
            number, handle = next(self._numbers), library.next_work(client)
        return WorkCall(self, number, handle)

    def end(self) -> None:
        """The membership ends."""
        self._ended = True
        while self._unanswered:
            library.free_future(self._unanswered.pop()[1])

    def take_back(self, number: int, handle: int) -> bool:
        if not self._ended:
            bisect.insort(self._unanswered, (number, handle))
        return not self._ended


class WorkCall(Future[Optional[Work]]):
    """A call for work. If it goes before its result is taken, it is left to the next one."""

    def __init__(self, calls: WorkCalls, number: int, handle: int):
        self._calls = this = weakref.ref(calls)
        self._number = number

        def take(future: int) -> Work | None:
            work, done = _library.Work(), ctypes.c_int()
            check(library.take_work(future, ctypes.byref(work), ctypes.byref(done)))
            if not done.value:
                return Work.of(work)
            of = this()
            if of is not None:
                of.finished = True
            return None

        super().__init__(handle, take)

    def give_up(self) -> None:
        """Nobody waits for it any more."""
        calls = self._calls()
        if self._handle is not None and calls is not None and calls.take_back(self._number, self._handle):
            self._handle = None

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.give_up()
            super().__del__()
