"""Batches of a PyTorch data set for the works that a job gives out; DataLoader's processes make them ahead."""
from __future__ import annotations

from collections import deque
from typing import Any, Callable, Iterator, List

import numpy.typing as npt
import torch.utils.data

from ..exchange import Work
from ..fingerprints import Generators, of_examples, of_subset, read_twice
from ..job import examples_seed
from .device import seed_on_host


class WorkPredictor:
    """Guesses which batches come next: in sync each step has works at the same places; otherwise one work follows on the
    other. With local steps a work has several batches. A wrong guess costs time and nothing else."""

    def __init__(self, batch: int, parts: int, local_steps: int = 1):
        self._batch, self._work = batch, batch * local_steps
        # Examples of a step.
        self._period = self._work * parts
        # By place in the step: the last clock at which there was work.
        self._places: dict[int, int] = {0: 0}
        self._clock: tuple[int, int] | None = None  # the newest one, and its first work
        self._last = -batch

    def next(self) -> int:
        """The position of the first example of the batch that probably follows, and so on."""
        begin = self._last - self._last % self._work
        if self._last + self._batch < begin + self._work:
            self._last += self._batch
            return self._last
        last = begin % self._period
        step = min(((place - last - 1) % self._period + 1 for place in self._places), default=self._period)
        self._last = begin + step
        return self._last

    def restart(self, work: Work) -> None:
        """The next guess follows on this batch."""
        self._last = work.first_example

    def saw(self, work: Work) -> None:
        """A batch was asked for."""
        begin = work.first_example - work.first_example % self._work
        if self._clock is None or work.clock != self._clock[0]:
            if self._clock is not None and work.clock == self._clock[0] + 1 and begin > self._clock[1]:
                period = begin - self._clock[1]
                if period != self._period and self._places.keys() <= {self._clock[1] % self._period}:
                    self._period, self._places = period, {}
            self._clock = work.clock, begin
        self._places[begin % self._period] = work.clock
        self._places = {place: clock for place, clock in self._places.items() if clock >= work.clock - 1}


class Batches:
    """The batch of each work: from processes that make the probable ones ahead, or made here. The global random numbers, of
    whichever process makes it, are seeded for each batch.

    Iterating begins with the processes, before this process has any connection: a fork would share it.
    """

    def __init__(self, dataset: Any, order: Callable[[int, int], npt.NDArray[Any]], batch: int, parts: int, num_workers: int,
                 collate: Callable[[list[Any]], Any] | None, job_seed: int, compared: int, local_steps: int, **options: Any):
        """order: the indices at the positions [first, first + n) of the job, n at most `batch`. compared: of how many examples
        `fingerprints` are."""
        self._dataset, self._order, self._batch, self._job_seed = dataset, order, batch, job_seed
        self._collate = collate or torch.utils.data.default_collate
        self._predictor = WorkPredictor(batch, parts, local_steps)
        self._ahead: Iterator[Any] | None = None
        self._begun: deque[int] = deque()
        # The position of its first example, and the batch.
        self._peeked: tuple[int, Any] | None = None
        # Of the batch that follows, and whether the last guess was right.
        self._guess, self._guesses = -1, False
        self._chosen = [order(begin, min(batch, compared - begin)).tolist() for begin in range(0, compared, batch)]
        # Each twice by the same process: its generators advance in between, if they are not known, and not seeded.
        self._requests = self._chosen + (self._chosen * num_workers)[:-len(self._chosen) % max(num_workers, 1)] + self._chosen
        if num_workers > 0:
            loader = torch.utils.data.DataLoader(dataset, batch_sampler=self._indices(), collate_fn=collate,
                                                 num_workers=num_workers, generator=generator_of(job_seed), **options)
            self._ahead = iter(loader)
        #: Of the training set, for the other workers' to be compared with.
        self.fingerprints = self._compare() if compared > 0 else {}

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

    def _compare(self) -> dict[str, str]:
        if self._ahead is None:
            first, second = read_twice(lambda: [self._made_of(indices) for indices in self._chosen], self._dataset, self._collate)
        else:
            # Where the other batches are made: a file that a data set opens when it is first read must not be open in this process,
            # which may fork other loaders.
            made = [next(self._ahead) for _ in self._requests]
            first, second = made[:len(self._chosen)], made[-len(self._chosen):]
        return {**of_subset(self._dataset), **of_examples(first, second)}

    def _make(self, first: int, examples: int) -> Any:
        seed_on_host(self._seed(first))
        return self._made_of(self._order(first, examples).tolist())

    def _made_of(self, indices: list[int]) -> Any:
        # As PyTorch's own loaders, from 2.0 on.
        whole = getattr(self._dataset, "__getitems__", None)
        return self._collate([self._dataset[i] for i in indices] if whole is None else whole(indices))

    def _indices(self) -> Iterator[list[int]]:
        for indices in self._requests:
            yield _Seeded(indices, 0, compares=True)
        while True:
            first = self._predictor.next()
            self._begun.append(first)
            yield _Seeded(self._order(first, self._batch).tolist(), self._seed(first))

    def _seed(self, first: int) -> int:
        return examples_seed(self._job_seed, first // self._batch)


class _Seeded(List[int]):
    """The examples of a batch, for a process of the loader: a plain list there. Unpickling it, just before the examples are made,
    seeds the process."""

    def __init__(self, indices: list[int], seed: int, compares: bool = False):
        """compares: generators that the data set has are seeded, too, until the next batch."""
        super().__init__(indices)
        self._arguments = list(indices), seed, compares

    def __reduce__(self) -> Any:
        return _arrive, self._arguments


# In a process of the loader.
_own_generators: Generators | None = None


def _arrive(indices: list[int], seed: int, compares: bool) -> list[int]:
    global _own_generators
    if _own_generators is not None:
        _own_generators.restore()
        _own_generators = None
    if compares:
        process: Any = torch.utils.data.get_worker_info()  # type: ignore[no-untyped-call]
        _own_generators = Generators(None if process is None else process.dataset)
        _own_generators.seed(seed)
    seed_on_host(seed)
    return indices


def generator_of(seed: int) -> torch.Generator:
    """For a DataLoader, which otherwise draws a number from the program's own generator."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    return generator
