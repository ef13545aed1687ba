"""One program is one worker of a job, with one loop over one model."""
from __future__ import annotations

import gc
import os
import weakref
from typing import Any, Iterable

from ..errors import ConfigError
from ..fingerprints import in_cluster

SEVERAL_LOSSES = ("a job has one model and one loop. To train several models or losses in one job, such as a GAN's, give one Optimizer "
                  "a module that has them all (torch.nn.ModuleDict), call backward() for each loss, and then step() once for each "
                  "batch; optimizer.groups gives their parameters rates of their own (docs/python.md)")


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
