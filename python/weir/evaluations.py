"""The evaluations that a job asks its workers for, at epochs' ends and at its own end; made by functions of the program."""
from __future__ import annotations

import hashlib
import logging
import math
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, NamedTuple, TypeVar

import numpy as np

from . import _library
from .errors import ConfigError, Fenced, JobDone, PeerLost
from .exchange import Weights
from .future import Future
from .job import FlatTensors, Job
from .tables import Rows

if TYPE_CHECKING:
    from .client import Client

T = TypeVar("T")

#: Takes the weights, arrays by name, and returns {"loss": ...}, with "accuracy", "auc" and "examples" if there are such.
Evaluate = Callable[[FlatTensors], Mapping[str, Any]]

_log = logging.getLogger("weir")

# How often a worker that waits looks for an order, in seconds.
_LOOK = 0.01
# How long a reader waits for an order at once, in seconds; Ctrl-C waits meanwhile.
_WAIT = 0.1
# How often to try a read while a server is away; each has waited for a while itself.
_READS = 5


class Order(NamedTuple):
    """An order to evaluate the newest weights (Client.snapshot()). epoch: that has ended, counted from 1."""

    id: int
    epoch: int


class Result(NamedTuple):
    """accuracy, auc: in [0, 1], if there are such. examples: of the set."""

    loss: float
    accuracy: float | None = None
    auc: float | None = None
    examples: int = 1

    def checked(self, source: str) -> Result:
        """Itself. ConfigError: a value is out of its range; `source` says whose it is."""
        for name, value in (("accuracy", self.accuracy), ("auc", self.auc)):
            if value is not None and not 0 <= value <= 1:
                raise ConfigError(f"{source}: {name} must be in [0, 1], or None where there is none; got {value}")
        if self.examples < 1:
            raise ConfigError(f"{source}: examples must be at least 1, got {self.examples}")
        return self

    def to_library(self, order: Order | None = None, validation: bool = False, final: bool = False, sha256: str = "") -> _library.Evaluation:
        accuracy, auc = (-1 if value is None else value for value in (self.accuracy, self.auc))
        return _library.Evaluation(self.loss, accuracy, auc, self.examples, validation, 0 if order is None else order.id, final,
                                   sha256.encode())


class Evaluated(NamedTuple):
    """An evaluation that a reader has made. epoch: that has ended, counted from 1; None: the job has. version: of the weights, in
    updates since the start; in sync the step. validation: evaluate has made it, and test makes that of the job's end."""

    epoch: int | None
    version: int
    validation: bool
    result: Result


#: An order could not be carried out.
FAILED = Result(math.nan, examples=0)


def result_of(returned: Any, function: str) -> Result:
    """ConfigError: the function has returned something else."""
    if not isinstance(returned, Mapping) or "loss" not in returned or not set(returned) <= set(Result._fields):
        seen = f"a mapping with {', '.join(map(str, returned)) or 'nothing'}" if isinstance(returned, Mapping) else type(returned).__name__
        raise ConfigError(f"{function}() must return {{\"loss\": ...}}, with \"accuracy\", \"auc\" and \"examples\" if there are such; "
                          f"got {seen}")
    try:
        numbers = {name: float(value) for name, value in returned.items() if value is not None}
        result = Result(**{**numbers, "examples": int(numbers.get("examples", 1))})  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{function}() must return numbers: {error}") from error
    return result.checked(f"the result of {function}()")


class Evaluations:
    """evaluate: for epochs' ends and, without test, for the job's end. test: for the job's end alone. ConfigError: they cannot be of
    use in this job."""

    def __init__(self, job: Job, evaluate: Evaluate | None, test: Evaluate | None):
        for name, function in (("evaluate", evaluate), ("test", test)):
            if function is not None and not callable(function):
                raise ConfigError(f"{name} must be a function of the model that returns {{\"loss\": ...}}, got {type(function).__name__}")
        every = int(job.get("evaluation.every_epochs", 0))
        if evaluate is not None and test is not None and every == 0:
            raise ConfigError("evaluate would never be called, since evaluation.every_epochs is 0 and test evaluates the job's end; take "
                              "one of them out, or set evaluation.every_epochs")
        self._evaluate, self._test = evaluate, test
        #: Whether epochs' ends are evaluated.
        self.of_epochs = evaluate is not None and every > 0
        # Whether their results decide how the job goes on, and which of them does.
        self._deciding = job.get("evaluation.metric", "").removeprefix("test_") or "loss"
        self._decides = int(job.get("evaluation.patience", 0)) > 0 or bool(job.get("evaluation.keep_best", False))
        # Where they decide, the job's end is evaluated as an epoch's already.
        self._validates_end = evaluate is not None and test is not None and not self._decides
        #: Rows that are read with the weights.
        self.rows: Rows | None = None
        self._memory: FlatTensors | None = None

    def wait(self, client: Client, future: Future[T]) -> T:
        """The result of the future. Evaluates meanwhile, if the job asks for it."""
        while self.of_epochs and not future.wait(_LOOK):
            self.look(client)
        return future.result()

    def at_end(self, client: Client) -> None:
        """When the job's examples are done: makes the last evaluation, or waits until another worker has."""
        if (self._test or self._evaluate) is not None and client.awaits_evaluation():
            self._make_last(client)

    def of_reader(self, client: Client) -> Iterator[Evaluated]:
        """As Client.evaluations()."""
        if (self._test or self._evaluate) is None:
            raise ConfigError("evaluations() calls the functions that the reader was made with: give it evaluate=, test=, or both")
        done = False
        while not done:
            try:
                # An order may come with the news that the examples are done.
                done = client.draining
                made = self.look(client, _WAIT)
                done = done and made is None
                if done:
                    made = self._make_last(client)
            except Fenced as fenced:
                done = False
                client.leave(fenced)
                _log.warning("%s; joining again", fenced)
                try:
                    client.join()
                except JobDone as others:
                    _log.info("%s", others)
                    return
                continue
            if made is not None:
                yield made

    def _make_last(self, client: Client) -> Evaluated:
        last = self._test or self._evaluate
        assert last is not None
        weights, values = self._read(client)
        sha256 = hashlib.sha256(values.flat.data).hexdigest()
        if self._validates_end:
            client._report(weights, self._validated(values), validation=True, sha256=sha256).result()
        result = result_of(last(values), "evaluate" if self._test is None else "test")
        _log.info("final evaluation at version %d: %s", weights.version, result)
        client._report(weights, result, final=True, sha256=sha256).result()
        self._memory = None
        return Evaluated(None, weights.version, False, result)

    def look(self, client: Client, wait: float = 0) -> Evaluated | None:
        """Evaluates, if the job asks for it, within so many seconds. None: it does not, or the weights could not be read."""
        order = client.take_order(wait)
        if order is None:
            return None
        try:
            weights, values = self._read(client)
        except PeerLost as lost:
            _log.warning("cannot evaluate epoch %d: %s", order.epoch, lost)
            client._report(None, FAILED, order).result()
            return None
        result, validation = self._validated(values), self._test is not None
        client._report(weights, result, order, validation=validation).result()
        return Evaluated(order.epoch, weights.version, validation, result)

    def _validated(self, values: FlatTensors) -> Result:
        assert self._evaluate is not None
        result = result_of(self._evaluate(values), "evaluate")
        if self._decides and getattr(result, self._deciding) is None:
            raise ConfigError(f"evaluate() must return {self._deciding!r}, which decides in this job (evaluation.metric); got {result}")
        return result

    def _read(self, client: Client) -> tuple[Weights, FlatTensors]:
        if self._memory is None:
            self._memory = client.model.split(np.empty(client.model.elements, dtype=np.float32))
        for _ in range(_READS - 1):
            try:
                return client.snapshot(self._memory, self.rows).result(), self._memory
            except PeerLost:
                pass
        return client.snapshot(self._memory, self.rows).result(), self._memory
