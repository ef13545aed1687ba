"""Hooks by which a program arranges a job's examples into batches, for example by length."""
from __future__ import annotations

from typing import Any, Callable, Iterable, List, Sequence

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError
from ..fingerprints import read_twice
from ..job import ExampleOrder, batch_seed

Indices = npt.NDArray[np.int32]
#: A window's examples -> the same, in another order.
Sampler = Callable[[List[int]], Iterable[int]]
#: A window's examples -> the same, in batches of data.batch_size.
BatchSampler = Callable[[List[int]], Iterable[Sequence[int]]]

_WINDOW = 50


class Arrangement:
    """What a program gives loader(): one of the two hooks or none, and how many batches a window has."""

    def __init__(self, sampler: Sampler | None, batch_sampler: BatchSampler | None, window: int | None):
        given = {"sampler": sampler, "batch_sampler": batch_sampler}
        #: The hook's name; None: there is none.
        self.name = next((name for name, hook in given.items() if hook is not None), None)
        if sampler is not None and batch_sampler is not None:
            raise ConfigError("sampler and batch_sampler were both given; give the one that makes the batches")
        hook: Any = batch_sampler if sampler is None else sampler
        if self.name is not None and not callable(hook):
            raise ConfigError(f"{self.name} must be a function, which gets a list of the examples' indices and returns the same ones in its "
                              f"{'order' if self.name == 'sampler' else 'batches'}; got {type(hook).__name__}, which would choose among all examples, "
                              "while the job gives out each once in an epoch (docs/data.md)")
        if window is not None and self.name is None:
            raise ConfigError("window is for sampler or batch_sampler; give one of them, too")
        if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
            raise ConfigError(f"window must be a number of batches, at least 1, got {window!r}")
        self.hook: Any = hook
        self.window = window or _WINDOW

    def of(self, order: ExampleOrder, examples: int, batch: int, job_seed: int) -> "ExampleOrder | ArrangedOrder":
        """The order as the hook arranges it. ConfigError: there is nothing to arrange."""
        return order if self.name is None else ArrangedOrder(order, self, examples, batch, job_seed)

    def __call__(self, indices: Indices, batch: int) -> Indices:
        """The hook's arrangement of these examples, which fill whole batches. ConfigError: it has other examples, or batches of another
        size."""
        returned = self.hook(indices.tolist())
        try:
            result = list(returned)
            if self.name == "batch_sampler":
                for number, one in enumerate(result):
                    if len(one) != batch:
                        raise ConfigError(f"batch_sampler returned {len(one)} examples as batch {number} of its window; each batch has "
                                          f"data.batch_size = {batch}, since the job counts examples")
                result = [i for one in result for i in one]
            arranged = np.array(result, dtype=np.int64)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self.name} must return indices, {'a list' if self.name == 'sampler' else 'batches'} of them, got "
                              f"{type(returned).__name__}: {error}") from error
        if not np.array_equal(np.sort(arranged), np.sort(indices)):
            raise ConfigError(f"{self.name} got {len(indices)} examples and returned {len(result)}, which are not the same ones; it may "
                              "change their order alone, since each example comes once in an epoch")
        return arranged.astype(np.int32)


class ArrangedOrder:
    """The job's order of the examples, with those of each window arranged by the program's hook. A window is a row of whole batches of
    one epoch, so that every worker makes the same of it, and each example stays in its epoch. A batch with examples of two epochs stays
    as it is."""

    def __init__(self, order: ExampleOrder, arrangement: Arrangement, examples: int, batch: int, job_seed: int):
        self._order, self._arrangement = order, arrangement
        self._examples, self._batch, self._job_seed = examples, batch, job_seed
        # By first batch: the newest two, as the loader may be ahead of the work.
        self._windows: dict[int, Indices] = {}
        if batch > examples:
            raise ConfigError(f"{arrangement.name} has nothing to arrange, since data.batch_size is {batch} and the training set has "
                              f"{examples} examples, so that every batch has examples of several epochs")

    def __call__(self, first: int, n: int) -> Indices:
        """As of ExampleOrder, for a batch or the beginning of one."""
        number, epoch = first // self._batch, first // self._examples
        begin, end = -(-epoch * self._examples // self._batch), (epoch + 1) * self._examples // self._batch
        if number >= end:
            return self._order(first, n)
        begin += (number - begin) // self._arrangement.window * self._arrangement.window
        at = (number - begin) * self._batch
        return self._window(begin, min(begin + self._arrangement.window, end))[at:at + n]

    def _window(self, begin: int, end: int) -> Indices:
        if begin not in self._windows:
            indices = self._order(begin * self._batch, (end - begin) * self._batch)
            made, again = read_twice(lambda: self._arrangement(indices, self._batch), self._arrangement.hook,
                                     seed=batch_seed(self._job_seed, begin))
            if not np.array_equal(made, again):
                raise ConfigError(f"{self._arrangement.name} arranged the same examples in two ways; the result must follow from the "
                                  "indices and from the global random numbers, which are seeded alike on all workers")
            while len(self._windows) > 1:
                del self._windows[next(iter(self._windows))]
            self._windows[begin] = made
        return self._windows[begin]
