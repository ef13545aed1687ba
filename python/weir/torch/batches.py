"""Batches of a PyTorch data set for the works that a job gives out; DataLoader's processes make them ahead."""
from __future__ import annotations

from collections import deque
from typing import Any, Callable, Iterator

import torch.utils.data

from ..errors import ConfigError
from ..exchange import Work
from ..job import ExampleOrder


class WorkPredictor:
    """Guesses which works come next: in sync each step has works at the same places; otherwise one work follows on the
    other. A wrong guess costs time and nothing else."""

    def __init__(self, batch: int, parts: int):
        self._batch = batch
        # Examples of a step.
        self._period = batch * parts
        # By place in the step: the last clock at which there was work.
        self._places: dict[int, int] = {0: 0}
        self._clock: tuple[int, int] | None = None  # the newest one, and its first work
        self._last = -self._period

    def next(self) -> int:
        """The position of the first example of the work that probably follows, and so on."""
        last = self._last % self._period
        step = min(((place - last - 1) % self._period + 1 for place in self._places), default=self._period)
        self._last += step
        return self._last

    def restart(self, work: Work) -> None:
        """The next guess follows on this work."""
        self._last = work.first_example

    def saw(self, work: Work) -> None:
        if self._clock is None or work.clock != self._clock[0]:
            if self._clock is not None and work.clock == self._clock[0] + 1 and work.first_example > self._clock[1]:
                period = work.first_example - self._clock[1]
                if period != self._period and self._places.keys() <= {self._clock[1] % self._period}:
                    self._period, self._places = period, {}
            self._clock = work.clock, work.first_example
        self._places[work.first_example % self._period] = work.clock
        self._places = {place: clock for place, clock in self._places.items() if clock >= work.clock - 1}


class Batches:
    """The batch of each work: from processes that make the probable ones ahead, or made here.

    Iterating begins with the processes, before this process has any connection: a fork would share it.
    """

    def __init__(self, dataset: Any, order: ExampleOrder, batch: int, parts: int, num_workers: int,
                 collate: Callable[[list[Any]], Any] | None, **options: Any):
        self._dataset, self._order, self._batch = dataset, order, batch
        self._collate = collate or torch.utils.data.default_collate
        self._predictor = WorkPredictor(batch, parts)
        self._ahead: Iterator[Any] | None = None
        self._begun: deque[int] = deque()
        # The position of its first example, and the batch.
        self._peeked: tuple[int, Any] | None = None
        # Of the batch that follows, and whether the last guess was right.
        self._guess, self._guesses = -1, False
        if num_workers > 0:
            loader = torch.utils.data.DataLoader(dataset, batch_sampler=_Endless(self._indices), collate_fn=collate,
                                                 num_workers=num_workers, **options)
            self._ahead = iter(loader)

    def __call__(self, work: Work) -> Any:
        self._predictor.saw(work)
        self._guesses = self._guess == work.first_example
        peeked, self._peeked = self._peeked, None
        if peeked is not None and peeked[0] == work.first_example and work.examples == self._batch:
            return peeked[1]
        if self._ahead is not None and work.examples == self._batch:
            while work.first_example in self._begun:
                first, batch = self._begun.popleft(), next(self._ahead)
                if first == work.first_example:
                    return batch
        if self._ahead is not None:
            # All guesses were wrong; each that is taken off makes room for a better one.
            self._predictor.restart(work)
            for _ in range(len(self._begun)):
                self._begun.popleft()
                next(self._ahead)
        return self._make(work.first_example, work.examples)

    def peek(self, work: Work) -> Any:
        """The batch of the work that probably follows on this one, whose batch was the last to be asked for."""
        if self._begun and self._ahead is not None:
            self._peeked = self._begun.popleft(), next(self._ahead)
        else:
            self._predictor.restart(work)
            first = self._predictor.next()
            self._peeked = first, self._make(first, self._batch)
        return self._peeked[1]

    def prepare(self, work: Work) -> None:
        """This work's gradient is on its way. While it and new weights travel, makes the batch that probably follows, unless
        processes do that, or the last guess was wrong."""
        if self._ahead is not None or self._peeked is not None or work.examples_left <= work.examples:
            return
        self._predictor.restart(work)
        self._guess = self._predictor.next()
        if self._guesses:
            self._peeked = self._guess, self._make(self._guess, self._batch)

    def _make(self, first: int, examples: int) -> Any:
        indices = self._order(first, examples).tolist()
        # As PyTorch's own loaders, from 2.0 on.
        whole = getattr(self._dataset, "__getitems__", None)
        return self._collate([self._dataset[i] for i in indices] if whole is None else whole(indices))

    def _indices(self) -> Iterator[list[int]]:
        while True:
            first = self._predictor.next()
            self._begun.append(first)
            yield self._order(first, self._batch).tolist()


class StreamBatches:
    """A batch for each work from this process's own passes over an IterableDataset: the next one, whatever the work. The
    processes that make them begin with this, before this process has any connection."""

    def __init__(self, dataset: Any, batch: int, num_workers: int, collate: Callable[[list[Any]], Any] | None,
                 **options: Any):
        # They outlive a pass: later a fork would share the connections.
        self._loader = torch.utils.data.DataLoader(dataset, batch_size=batch, collate_fn=collate, num_workers=num_workers,
                                                   persistent_workers=num_workers > 0, **options)
        self._pass = iter(self._loader)
        self._makes_ahead = num_workers > 0
        self._peeked: list[Any] = []

    def __call__(self, work: Work) -> Any:
        return self._peeked.pop() if self._peeked else self._next()

    def peek(self, work: Work) -> Any:
        """The batch of the work that follows on this one."""
        self._peeked = [self._next()]
        return self._peeked[0]

    def prepare(self, work: Work) -> None:
        """As of Batches."""
        if not self._makes_ahead and not self._peeked and work.examples_left > work.examples:
            self.peek(work)

    def _next(self) -> Any:
        for _ in range(2):
            for data in self._pass:
                return data
            self._pass = iter(self._loader)
        raise ConfigError("train_set has no examples: a pass over it ended before the first one")


class _Endless(torch.utils.data.Sampler):  # type: ignore[type-arg]
    def __init__(self, indices: Callable[[], Iterator[list[int]]]):
        self._indices = indices

    def __iter__(self) -> Iterator[list[int]]:
        return self._indices()
