"""Batches of an IterableDataset, a stream, which gives out examples in its own order."""
from __future__ import annotations

import itertools
from typing import Any, Callable, Iterable, Iterator

import numpy as np
import torch.utils.data

from ..errors import ConfigError, Error
from ..exchange import Work
from ..job import examples_seed
from .batches import Batches, generator_of
from .device import seed_on_host
from .whole_job import WholeJob, has_shards


_EMPTY = "train_set has no examples: a pass over it, or over a shard of it, ended before the first one"


def batches_of(stream: Any, whole: WholeJob, num_workers: int, collate: Callable[[list[Any]], Any] | None, job_seed: int,
               worker_seed: int, **options: Any) -> Batches | StreamBatches:
    """The loop's batches. ConfigError: neither the job's config nor TF_CONFIG says which shards there are, or the loader cannot have so
    many processes."""
    if not has_shards(stream):
        return StreamBatches(stream, whole.batch, num_workers, collate, worker_seed, **options)
    try:
        if not whole.is_sync:
            shards = whole.workers
            own = stream if shards == 1 else stream.shard(num_shards=shards, index=whole.rank % shards)
            return StreamBatches(own, whole.batch, num_workers, collate, worker_seed, **options)
        parts = whole.parts
    except Error as error:
        raise ConfigError(f"train_set has shard(), whose arguments must be known before the loop: {error}") from None
    if num_workers > 1:
        raise ConfigError(f"num_workers is {num_workers}, but in sync one process at most can read ahead in a stream, since each of several "
                          "would read all of it; give num_workers=1, or a map-style data set")
    return Batches(PartStream(stream, whole.batch, parts, whole.local_steps, job_seed), lambda first, n: np.arange(first, first + n), whole.batch, parts,
                   num_workers, collate, job_seed, compared=0, local_steps=whole.local_steps, **options)


class PartStream:
    """A stream in sync, as a map-style data set over the job's positions: part p of each step is the next batch of shard p, or the next
    local.steps ones, pass after pass, whichever worker computes it. A worker that begins with a part in the middle of the job reads its shard from the beginning, and
    so does one that goes back."""

    def __init__(self, stream: Any, batch: int, parts: int, local_steps: int, job_seed: int):
        self._stream, self._batch, self._parts, self._per_part, self._seed = stream, batch, parts, local_steps, job_seed
        self._shards: dict[int, _Shard] = {}

    def __getitem__(self, position: int) -> Any:
        number, offset = divmod(position, self._batch)
        step, of_step = divmod(number, self._parts * self._per_part)
        part, of_part = divmod(of_step, self._per_part)
        wanted = step * self._per_part + of_part
        shard = self._shards.get(part)
        if shard is None or shard.batches > wanted:
            shard = self._shards[part] = _Shard(_passes(self._stream.shard(num_shards=self._parts, index=part)))
        while shard.batches < wanted:
            shard.batches += 1
            step, of_part = divmod(shard.batches, self._per_part)
            seed_on_host(self._seed_of((step * self._parts + part) * self._per_part + of_part))
            shard.batch = list(itertools.islice(shard.examples, self._batch))
        if offset == 0:
            # For what is made of the batch: the same whether it was read now or before.
            seed_on_host(self._seed_of(number))
        return shard.batch[offset]

    def _seed_of(self, number: int) -> int:
        return examples_seed(self._seed, number)


class _Shard:
    """What is left of a shard, and the batch that was last read, whose number in the shard is `batches`."""

    def __init__(self, examples: Iterator[Any]):
        self.examples, self.batches = examples, -1
        self.batch: list[Any] = []


def _passes(stream: Iterable[Any]) -> Iterator[Any]:
    """Its examples, pass after pass, without end."""
    while True:
        empty = True
        for example in stream:
            empty = False
            yield example
        if empty:
            raise ConfigError(_EMPTY)


class StreamBatches:
    """A batch for each work from this process's own passes over a stream: the next one, whatever the work. The
    processes that make them begin with this, before this process has any connection.

    seed: this worker's own, since all workers may have the same stream. Where batches are made here the global random numbers are
    seeded for each; the processes have other seeds than those of other workers.
    """

    def __init__(self, dataset: Any, batch: int, num_workers: int, collate: Callable[[list[Any]], Any] | None, seed: int,
                 **options: Any):
        # They outlive a pass: later a fork would share the connections.
        self._loader = torch.utils.data.DataLoader(dataset, batch_size=batch, collate_fn=collate, num_workers=num_workers,
                                                   persistent_workers=num_workers > 0, generator=generator_of(seed), **options)
        self._pass = iter(self._loader)
        self._makes_ahead = num_workers > 0
        #: There are none: streams may differ.
        self.fingerprints: dict[str, str] = {}
        self._seed, self._made = seed, 0
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
        if not self._makes_ahead:
            seed_on_host(examples_seed(self._seed, self._made))
            self._made += 1
        for _ in range(2):
            for data in self._pass:
                return data
            self._pass = iter(self._loader)
        raise ConfigError(_EMPTY)
