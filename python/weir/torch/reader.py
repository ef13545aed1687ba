"""A model that follows a job from outside the training."""
from __future__ import annotations

import contextlib
import hashlib
import os
from typing import Any, Callable, Iterator, Mapping, Sequence, TypeVar

import numpy as np
import torch

from ..client import Client
from ..errors import ConfigError, Error, Fenced
from ..evaluations import Evaluated
from ..exchange import Weights
from ..job import Job
from .buffers import BufferRules
from .embedding import KeptRows, KeysOfTables, TableRows
from .evaluation import EvaluateModel, of_values
from .weights import ModelWeights

T = TypeVar("T")


class Reader:
    """Reads a job's weights into a model, for an evaluator of its own: at the ends of epochs, as the job asks for it,

        with weir.torch.Reader(model, "job.json", evaluate=evaluate) as reader:
            for made in reader.evaluations():
                print(made.epoch, made.result.loss)

    or at intervals, for people alone.

        with weir.torch.Reader(model, "job.json", cluster="cluster.json") as reader:
            for version in reader.versions():
                loss, accuracy = measure(model, test_set)
                reader.report(loss=loss, accuracy=accuracy, examples=len(test_set))

    model: the one that the job's workers train. job, overrides, buffers: as theirs.
    evaluate, test: as of weir.torch.Optimizer, for evaluations().
    cluster, task, token_file, log_level: as of weir.Client. The task is an evaluator's: with `cluster` and without
        TF_CONFIG it is evaluator:0, which the cluster need not list.

    `with` joins the job, as a reader without part in its training, and leaves at the end. A reader whose membership is
    lost joins again. JobDone: the job's examples were done before this reader came.
    """

    def __init__(self, model: torch.nn.Module, job: str | os.PathLike[str] | Mapping[str, Any] | Job, *,
                 cluster: str | None = None, task: str | None = None, token_file: str | None = None,
                 log_level: str | None = None, overrides: Sequence[str] = (), buffers: BufferRules | None = None,
                 evaluate: EvaluateModel | None = None, test: EvaluateModel | None = None):
        self._weights = ModelWeights(model, buffers)
        self._evaluates = evaluate is not None or test is not None
        # Of evaluations().
        self._kept: KeptRows | None = None
        functions = [of_values(of, model, self._weights, self._kept_rows) for of in (evaluate, test)]
        #: This reader's membership (weir.Client).
        self.client = Client(job, self._weights.tensors(), 0, cluster=cluster, task=task, token_file=token_file,
                             log_level=log_level, overrides=overrides, reader=True, evaluate=functions[0], test=functions[1])
        self._rows = TableRows(model, self.client.tables)
        self._rows.bind()
        self._memory = np.empty(self.client.model.elements, dtype=np.float32)
        # Counts memberships.
        self._joined = 1
        # What is in the model and in the memory, and the membership in which it is of the job's end: in the next one the
        # job may have gone back to a checkpoint, and train once more.
        self._read: tuple[Weights, int | None] | None = None
        # The last report, with the SHA-256 of the weights that it is of.
        self._reported: tuple[str, dict[str, Any]] | None = None

    def __enter__(self) -> "Reader":
        self.client.__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.client.__exit__(kind, error, trace)

    @contextlib.contextmanager
    def snapshot(self, keys: KeysOfTables | None = None) -> Iterator[int]:
        """As Optimizer.snapshot(): within `with`, the model has the newest consistent weights of the job, of one step in
        sync; then its own again. The value is their version: updates since the start. keys: the rows of these, {"table":
        keys}, are of the same version; without it embedding modules read the newest rows each time."""
        end_of = self._joined if self._as_member(lambda: self.client.draining) else None
        with self._rows.snapshot(self.client, self._weights, keys, self._as_member, self._memory) as read:
            self._read = read, end_of
            try:
                yield read.version
            finally:
                self._read = None

    def report(self, *, loss: float, examples: int, accuracy: float | None = None) -> None:
        """Tells the job the result of an evaluation of the weights that are in the model, within snapshot() or the loop over
        versions(): `weir status`, the dashboard and the job's summary show the newest one, and at the end that of the
        trained weights.

        loss: the mean over this many examples of the test set. accuracy: in [0, 1], if there is one.
        """
        if self._read is None:
            raise Error("report() was called when the model had no weights of the job; call it within `with "
                        "reader.snapshot():` or the loop over versions()")
        weights, end_of = self._read
        result: dict[str, Any] = {"loss": float(loss), "examples": examples, "accuracy": accuracy}
        sha256 = self._sha256()
        self._as_member(lambda: self.client.report(
            weights, final_sha256=sha256 if end_of == self._joined else None, **result).result())
        self._reported = sha256, result

    def versions(self, interval: float | None = None, keys: KeysOfTables | None = None) -> Iterator[int]:
        """Yields the version of the newest weights, which are in the model meanwhile, as by snapshot(). Then waits for
        the next version. Ends with the one in which all of the job's examples are.

        interval: the least time between two reads, in seconds; by default the job's evaluation.interval_seconds. keys: as of
        snapshot().
        """
        if self._evaluates:
            raise ConfigError("this reader was made with evaluate= or test=, so that the job waits for its evaluations: loop over "
                              "evaluations(), or make it without")
        if interval is None:
            interval = float(self.client.job.get("evaluation.interval_seconds", 5))
        done, last = self.client.draining, -1
        while True:
            joined = self._joined
            with self.snapshot(keys) as version:
                # It is smaller than the last one when the job went back to a checkpoint.
                if version != last or done and self._reported is not None and self._reported[0] != self._sha256():
                    self._reported = None
                    yield version
                elif done and self._reported is not None:
                    # The weights of the end had been read before the job was known to be at its end.
                    self.report(**self._reported[1])
            if done and joined == self._joined:
                return
            last = version
            done = self._as_member(lambda: self.client.wait_draining(interval))

    def evaluations(self, keys: KeysOfTables | None = None) -> Iterator[Evaluated]:
        """Calls evaluate for each end of an epoch that the job asks an evaluator for (evaluation.every_epochs), and test, or else
        evaluate, for the job's end; reports the results to the job, which decide of its early stop and its best weights, and yields
        each. The job asks an evaluator before its workers. In sync the weights are exactly those of the epoch's end, and the job's next
        step waits until they are read; what evaluate computes then, nobody waits for, unless the job has evaluation.patience or
        keep_best. keys: the rows of these, {"table": keys}, are of the same version; without it embedding modules read the newest."""
        if keys is not None:
            self._kept = KeptRows(keys, self.client.tables)
            self.client._evaluations.rows = self._kept.rows
        return self.client.evaluations()

    def _kept_rows(self) -> contextlib.AbstractContextManager[None]:
        return self._rows.elsewhere(self.client, self._kept, self._as_member)

    def _sha256(self) -> str:
        return hashlib.sha256(self._memory.data).hexdigest()

    def _as_member(self, call: Callable[[], T]) -> T:
        """The call's result. Joins again if the membership was lost."""
        try:
            return call()
        except Fenced as fenced:
            self.client.leave(fenced)
            self.client.join()
            self._joined += 1
            return call()
