"""The loops over a job's batches, as programs see them: one for the whole job, or one within another for its epochs. One program is one
worker of a job, with one loop over one model."""
from __future__ import annotations

import gc
import os
import weakref
from dataclasses import dataclass
from typing import Any, Generator, Iterable, Iterator

from ..errors import ConfigError, Error
from ..fingerprints import in_cluster
from .whole_job import WholeJob

# Keywords of DataLoader, and what the job has in their place.
_OF_LOADERS = {
    "batch_size": "it is data.batch_size of the job",
    "shuffle": "the job's order of the examples follows from its seed",
    "drop_last": "set data.drop_last of the job. Batches cross the ends of epochs, so that only the job's last step (in bounded and async "
                 "its last batch) may not be full, which is then left out",
    "generator": "random numbers follow from the job's seed",
    "persistent_workers": "the loader's processes go on from epoch to epoch, since one loop has them all",
    "timeout": "the loader waits for its processes as long as they live",
}


SEVERAL_LOSSES = ("a job has one model and one loop. To train several models or losses in one job, such as a GAN's, give one Optimizer "
                  "a module that has them all (torch.nn.ModuleDict), call backward() for each loss, and then step() once for each "
                  "batch; optimizer.groups gives their parameters rates of their own (docs/python.md)")


def refuse_keywords(refused: Iterable[str], loop: str) -> None:
    """ConfigError: a loop, "loader()", was given keywords that it does not take."""
    for name in refused:
        raise ConfigError(f"{name} cannot be given to {loop}: {_OF_LOADERS.get(name, 'it has no such argument')}")


@dataclass(frozen=True)
class Begins:
    """Stands before the first batch of an epoch. The model has its weights, but nothing else of it was begun."""

    epoch: int


class Loader(Iterator[Any]):
    """The batches of Optimizer.loader()."""

    def __init__(self, batches: Generator[Any, None, None], whole: WholeJob):
        #: With Begins before the first batch of each epoch.
        self.batches = batches
        self._whole = whole

    def __next__(self) -> Any:
        batch = next(self.batches)
        return next(self.batches) if isinstance(batch, Begins) else batch

    def __len__(self) -> int:
        """The job's batches, where all of them come here: without a cluster, and without a checkpoint to go on from. TypeError: how many
        come is not known."""
        if self._whole.alone and not self._whole.may_go_on:
            return self._whole.batches
        why = ("the job may go on from a checkpoint, and then has fewer batches left" if self._whole.alone else
               "it gives the batches that the job leaves to this worker, which depends on the other workers and on what was done before")
        raise TypeError(f"loader() has no length: {why}. opt.batches_total is the number of the job's batches, for all workers together; "
                        "Optimizer(progress=True) shows how far it is")

    def __bool__(self) -> bool:
        return True

    def close(self) -> None:
        """Leaves the loop, as `break` does."""
        self.batches.close()


class Epoch(Iterator[Any]):
    """One epoch's batches for this worker. number: of the epoch, from 0 on."""

    def __init__(self, loader: Loader, number: int):
        self.number = number
        self._ended = False
        # Of the epoch that follows on this one.
        self._next: Begins | None = None
        # The variable of the outer loop, which lives on after it, must not keep the job from ending.
        self._loader = weakref.ref(loader)

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        loader = self._loader()
        if loader is None:
            raise Error(f"the loop over epochs() has ended, and epoch {self.number} has no batches any more; go through it within that loop")
        try:
            batch = next(loader.batches)
            if isinstance(batch, Begins):
                self._next = batch
                raise StopIteration
            return batch
        except StopIteration:
            self._ended = True
            raise


def epochs_of(loader: Loader) -> Generator[Epoch, None, None]:
    """The epochs of Optimizer.epochs()."""
    begins: Begins | None = next(loader.batches, None)
    while begins is not None:
        epoch = Epoch(loader, begins.epoch)
        yield epoch
        if not epoch._ended:
            loader.batches.throw(Error(f"the loop over epoch {epoch.number} ended before the epoch, whose other batches nobody would compute "
                                       "then; leave both loops to leave the job. For a shorter job set train.epochs or train.examples"))
        begins = epoch._next


class Loop:
    """The loop of an Optimizer, from when that is made."""

    _live: "weakref.WeakSet[Loop]" = weakref.WeakSet()

    def __init__(self, parameters: Iterable[Any], cluster: str | None, task: str | None):
        self._parameters = set(map(id, parameters))
        # Which worker this is; None: the job is in this process, and is another one for each loop.
        self._worker = (cluster, task, os.environ.get("TF_CONFIG")) if in_cluster(cluster) else None
        self._runs = self._ended = False
        self.check()
        Loop._live.add(self)

    def check(self) -> None:
        """ConfigError: another loop has this worker's place in the job, or is training the same parameters now."""
        if self._other() is None:
            return
        gc.collect()  # one that nobody has any more, but for cycles
        what = self._other()
        if what is not None:
            raise ConfigError(f"{what}: {SEVERAL_LOSSES}")

    def begin(self) -> None:
        self.check()
        self._runs = True

    def end(self) -> None:
        self._runs, self._ended = False, True

    def _other(self) -> str | None:
        for other in Loop._live:
            if other is self or other._ended:
                continue
            if other._runs and other._parameters & self._parameters:
                return "another weir.torch.Optimizer is training parameters of this model in its loop"
            if self._worker is not None and other._worker == self._worker:
                return "this program has another weir.torch.Optimizer for the same worker, whose loop has not ended"
        return None
