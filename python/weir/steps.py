"""The training loop of a worker: what to compute next, with which weights; and joining again."""
from __future__ import annotations

import contextlib
import logging
import math
import sys
from collections import deque
from typing import Any, Callable, Iterator, Mapping, TypeVar

import numpy as np
import numpy.typing as npt

from .client import Client
from .errors import ConfigError, Drained, Error, Fenced, JobDone, PeerLost
from .exchange import Gate, Gradient, Pushed, Weights, Work
from .future import Future
from .job import Arrays, FlatTensors, Floats, batch_seed, seed_globals
from .metrics import number_of
from .progress import ProgressLine, say
from .tables import Keys, Rows, RowSet

T = TypeVar("T")

_log = logging.getLogger("weir")


def loss_of(loss: Any) -> float | None:
    """The loss as a number. ConfigError: it is not one."""
    return None if loss is None else number_of(loss, "loss must be one number, the mean loss over the batch's examples")


class Batch:
    """data.batch_size examples of a step (the job's last batch may have fewer). work: which ones; seed: as Step.seed, of this batch."""

    def __init__(self, client: Client, work: Work, seed: int):
        self._client, self.work, self.seed = client, work, seed

    @property
    def examples(self) -> npt.NDArray[np.int32]:
        """The indices of its examples, in [0, train_examples)."""
        return self._client.order(self.work.first_example, self.work.examples)


class Step:
    """One piece of work, with its weights.

    work: what it is. memory: the weights, which change when the loop continues; what is written there is lost.
    """

    def __init__(self, loop: "_Membership", work: Work, weights: FlatTensors, base: Weights):
        self._loop, self._base = loop, base
        self.work, self.memory = work, weights
        self.pushed = False
        # No push of this step can count: the step is past, or the membership has ended with the error.
        self._late = False
        self._error: Error | None = None
        self._gradient: Gradient | None = None
        # Of the push, if it has begun before the gradient is complete.
        self._gate: Gate | None = None

    @property
    def weights(self) -> Mapping[str, Floats]:
        """name -> array, float32, which change when the loop continues. Read-only: what a program changed there, the servers' weights would
        not have."""
        return self.memory.read_only

    @property
    def examples(self) -> npt.NDArray[np.int32]:
        """The indices of the work's examples, in [0, train_examples)."""
        return self._loop.client.order(self.work.first_example, self.work.examples)

    @property
    def seed(self) -> int:
        """For random numbers of this step, in [0, 2^63): a function of the job's seed and the batch alone, so that the numbers do not
        depend on which worker computes the batch, and no two batches have the same. numpy.random and `random` begin each
        step with it. With local.steps it is that of the first batch."""
        return batch_seed(self._loop.job_seed, self.work.first_example // self._loop.batch_size)

    @property
    def batches(self) -> Iterator[Batch]:
        """The batches of the step in their order: local.steps of the job, or one. numpy.random and `random` begin each with its seed."""
        loop = self._loop
        for work in self.work.batches(loop.batch_size):
            batch = Batch(loop.client, work, batch_seed(loop.job_seed, work.batch))
            loop.seed(batch.seed)
            yield batch

    @property
    def membership(self) -> object:
        """The same object for all steps of this worker until it has to join again; for Weir itself."""
        return self._loop

    @property
    def gradient(self) -> Gradient:
        """Memory for the gradient, name -> array; uninitialised."""
        if self._gradient is None:
            self._gradient = self._loop.new_gradient()
        return self._gradient

    def rows(self, table: str, keys: Keys) -> Floats:
        """The rows of these keys in an embedding table of the job, float32 [n, dim]; keys is int64 or uint64 [n], in any order
        and perhaps several times. Waits for them. In sync they are of the step's weights; in bounded and async, and with consistency.tables
        "async", they may be newer than the weights, and newer from call to call.

        Where the step turns out to be past, or this worker to be out of the job, they are zeros: push() then sends nothing,
        and the loop continues, or joins again.
        """
        client = self._loop.client
        values = np.zeros((len(keys), client.tables.dim(table)), dtype=np.float32)
        if len(keys) == 0 or self._late:
            return values
        client.set_computing(False)
        try:
            early = self._loop.early_rows(self.work.clock, table, keys)
            if early is not None:
                return early
            self._late = client.pull_rows(self.work.clock, {table: (keys, values)}).result().past
        except (Fenced, Drained, JobDone) as error:
            self._late, self._error = True, error
        finally:
            client.set_computing(True)
        if self._late:
            values.fill(0)
        return values

    def prefetch_rows(self, keys: Mapping[str, Keys]) -> None:
        """Asks for rows that the loop's next step reads, {"table": keys}, so that they travel while this step is computed.
        rows() of that step then finds them, and asks for all where one is missing. In sync they are the same; in async, in
        bounded with consistency.prefetch, and with consistency.tables "async", they are without the update of this step."""
        if not self._late:
            self._loop.prefetch_rows(self.work, keys)

    def as_member(self, call: Callable[[], T]) -> T:
        """The result of a call to the servers that is not about this step, such as Client.snapshot(). Where this worker turns out to
        be out of the job, it joins again and makes the call once more; push() of this step then sends nothing. JobDone: the
        job's examples were done meanwhile."""
        try:
            return call()
        except (Fenced, Drained) as fenced:
            self._late, self._error = True, fenced
            client = self._loop.client
            _log.warning("%s; joining again", fenced)
            client.leave(Fenced(str(fenced)))
            client.join()
        return call()

    def ready(self, name: str) -> None:
        """The values of the tensor of this name in step.gradient are final, so that they may travel while others are computed; push()
        sends the rest. They leave with push() where nothing is gained by that (Client.gains_from_gate), and with
        train.clip_norm or clip_value, since the norm is that of the whole gradient (not with train.clip "mean"); and where the
        job has embedding tables."""
        self._check_open()
        self._loop.refuse_gradient("ready()")
        if self._late:
            return
        if self._gate is None and self._loop.overlaps:
            self._gate = self._loop.client.new_gate()
            self._loop.push(self, self.gradient, None, self._gate, None)
        if self._gate is not None:
            self._gate.ready(name)

    def push(self, gradient: Arrays | None = None, *, loss: Any = None, rows: Rows | None = None, weight: Any = None) -> None:
        """Sends the gradient: the mean over the examples. Returns at once; the memory must not be written again.

        gradient: by default step.gradient. train.clip_value and clip_norm apply, to rows with it; with train.clip "mean"
        the servers apply clip_norm to the mean of the step. loss: the mean loss over the examples (a number,
        or an array of one), which `weir status` and the summary show. rows: the gradient of rows, {"table": (keys, values)}; that of
        a key which comes several times is summed. weight: in sync, the gradient's weight in the mean of its step, in place of the number
        of examples, for a loss that is the mean over something else, such as labels: a number above 0, and the same whichever worker
        computes the batch. Progress and mean losses count examples as before. ConfigError: it is something else, the mode is another
        one, or the servers are of an earlier version; or the job has local.steps, which push_result() is for.
        """
        if gradient is not None and not isinstance(gradient, Mapping):
            raise ConfigError(f"push() takes the gradient first, arrays by name, got {type(gradient).__name__}; give the loss by its "
                              "name: push(loss=loss)")
        mean_loss = loss_of(loss)
        self._check_open()
        self._loop.refuse_gradient("push()")
        if weight is not None and self._gate is not None:
            raise Error("a part of step.gradient is on its way, since ready() was called, and it has gone without a weight; to give one, "
                        "leave out ready()")
        if self._late:
            pass
        elif self._gate is None:
            self._loop.push(self, *self._clipped(self.gradient if gradient is None else gradient, rows), None, weight)
        elif gradient is None:
            for name in self.gradient:
                self._gate.ready(name)
        else:
            raise Error("a part of step.gradient is on its way, since ready() was called; put all of it there, and call "
                        "push() without a gradient")
        self._end(mean_loss)

    def push_result(self, weights: Arrays, *, loss: Any = None, weight: Any = None) -> None:
        """Sends what the program's own steps over `batches`, beginning at the step's weights, have taken away from them: step.weights -
        weights, to which the servers apply the job's `optimizer` as the outer rule. Of running statistics (Tensor.buffer) it sends the
        new values. Returns at once; `weights`, all tensors by name, are free again. The difference goes into step.gradient.

        loss: the mean over the step's examples. weight: as of push(). The job may have any local.steps, also 1. ConfigError: `weights`
        are not the model's tensors; ready() has begun a push; or the job has embedding tables, or train.clip_norm, clip_value or
        local.keep_state for steps that are the program's.
        """
        loop = self._loop
        mean_loss = loss_of(loss)
        self._check_open()
        if self._gate is not None:
            raise ConfigError("push_result() cannot follow on ready(), with which a gradient is on its way; leave out ready()")
        if loop.clip_value != 0 or loop.clip_norm != 0:
            raise ConfigError(f"push_result() is refused, since train.{'clip_norm' if loop.clip_value == 0 else 'clip_value'} of the job clips the "
                              "gradient of each of a worker's own steps, and these are the program's: clip them there, and take it out of the "
                              "job, or give train.clip \"mean\"")
        if loop.client.job.get("local.keep_state"):
            raise ConfigError("push_result() is refused, since local.keep_state of the job is for steps that Weir takes, and these are the program's: "
                              "keep the state of their rule there, or begin it anew, and take the field out of the job")
        if loop.client.tables:
            raise ConfigError("push_result() is refused, since the job has embedding tables, whose rows a program's own steps do not have; "
                              "use push()")
        model = loop.client.model
        arrays, _ = model.place(weights, "push_result", writeable=False)
        for name, tensor in model.tensors.items():
            if tensor.buffer:
                np.copyto(self.gradient[name], arrays[name])
            else:
                np.subtract(self.memory[name], arrays[name], out=self.gradient[name])
        self.push_difference(loss=mean_loss, weight=weight)

    def push_difference(self, *, loss: float | None, weight: Any) -> None:
        """As push_result(), with its loss and weight, when step.gradient has the difference; for Weir itself."""
        self._check_open()
        if not self._late:
            self._loop.push(self, self.gradient, None, None, weight)
        self._end(loss)

    def _end(self, mean_loss: float | None) -> None:
        if not self._late:
            self._loop.progress.add(self._loop.client, self.work, mean_loss)
        self.pushed = True

    def _check_open(self) -> None:
        if self.pushed:
            raise Error("this step was pushed already; each is pushed once")

    def _clipped(self, gradient: Arrays, rows: Rows | None) -> tuple[Arrays, Rows | None]:
        """The gradients, or where the job clips them their clipped values: the tensors' in step.gradient."""
        limit, most = self._loop.clip_value, self._loop.clip_norm
        if limit == 0 and most == 0:
            return gradient, rows
        model, tables = self._loop.client.model, self._loop.client.tables
        if gradient is not self.gradient:
            arrays, _ = model.place(gradient, "push", writeable=False)
            for name in self.gradient:
                np.copyto(self.gradient[name], arrays[name])
        summed = tables.place(rows, "push", writeable=False).summed()
        gradients = [array for name, array in self.gradient.items() if not model.tensors[name].buffer]
        gradients += [values for _, values in summed.values()]
        if limit > 0:
            for array in gradients:
                np.clip(array, -limit, limit, out=array)
        if most > 0:
            norm = math.sqrt(sum(float(np.sum(np.square(array, dtype=np.float64))) for array in gradients))
            if math.isfinite(norm) and norm > most:
                for array in gradients:
                    array *= np.float32(most / norm)
        return self.gradient, summed


class _Membership:
    """The loop from joining until the job is done or the membership ends."""

    def __init__(self, client: Client, progress: "_Progress", recycles: bool, seeds: bool):
        self.client, self.progress, self._recycles, self._seeds = client, progress, recycles, seeds
        self.job_seed = int(client.job.config["seed"])
        #: The examples of a batch, and a push's batches.
        self.batch_size, self.local_steps = int(client.job.config["data"]["batch_size"]), int(client.job.get("local.steps", 1))
        # Memory that no push uses any more.
        self._spare: list[Gradient] = []
        # In bounded: the pull of the next clock is under way during a whole step.
        self._prefetch = bool(client.job.get("consistency.prefetch", False))
        # The mean of a step is clipped by the servers.
        self.clip_norm = 0 if client.job.get("train.clip", "push") == "mean" else float(client.job.get("train.clip_norm", 0))
        self.clip_value = np.float32(client.job.get("train.clip_value", 0))
        #: Whether pushes begin before their gradients are complete. Those of rows are when a push begins.
        self.overlaps = self.clip_norm == 0 and self.clip_value == 0 and not client.tables and client.gains_from_gate
        # One set of weights is in use, the other on its way.
        self._views = [client.model.split(np.empty(client.model.elements, dtype=np.float32)) for _ in range(2)]
        self._at: int | None = None
        self._base: Weights | None = None
        # Each with its gradient.
        self._pushes: list[tuple[Future[Pushed], Arrays]] = []
        # The pull of a later clock, alone or with a push of the gradient, into self._views[1].
        self._next: tuple[int, Future[Any], Arrays | None] | None = None
        # Rows that were asked for early, and their clock: those of this step and of the next one.
        self._early: deque[tuple[int, RowSet, Future[Weights]]] = deque(maxlen=2)

    def refuse_gradient(self, call: str) -> None:
        """ConfigError: a push of this job is no gradient."""
        if self.local_steps > 1:
            raise ConfigError(f"{call} is for gradients, but local.steps is {self.local_steps}: a push of this job is what so many steps of the "
                              "program have taken away from the weights. Give what they have made of the weights to push_result(); for a "
                              "gradient over more examples set data.batch_size instead")

    def seed(self, seed: int) -> None:
        if self._seeds:
            seed_globals(seed)

    def run(self) -> Iterator[Step]:
        while True:
            work = self._next_work()
            if work is None:
                break
            self._collect(wait=False)
            if not self._find_weights(work.clock):
                continue
            if self._prefetch and self._next is None:
                self._begin_pull(work.clock + 1)
            assert self._base is not None
            self.progress.begin(self.client)
            step = Step(self, work, self._views[0], self._base)
            self.seed(step.seed)
            self.client.set_computing(True)
            yield step
            self.client.set_computing(False)
            if step._error is not None:
                raise step._error
            if not step.pushed:
                raise Error(f"the gradient of batch {work.batch} was not pushed: each step of the loop is pushed once, "
                            "before the next one begins. To leave the job early, raise an exception")
        self._collect(wait=True)

    def _next_work(self) -> Work | None:
        evaluations = self.client._evaluations
        if not evaluations.of_epochs:
            return self.client.next_work()
        evaluations.look(self.client)
        future = self.client.begin_next_work()
        try:
            return self._wait(future)
        finally:
            future.give_up()

    def _wait(self, future: Future[T]) -> T:
        return self.client._evaluations.wait(self.client, future)

    def free(self) -> None:
        """Lets the memory go, which the program's last step would keep."""
        self._views, self._spare, self._pushes, self._next = [], [], [], None
        self._early.clear()

    def new_gradient(self) -> Gradient:
        return self._spare.pop() if self._spare else self.client.new_gradient()

    def push(self, step: Step, gradient: Arrays, rows: Rows | None, gate: Gate | None, weight: Any) -> None:
        client, alone = self.client, not step.work.last_of_clock or self._next is not None
        # If a pull of the next clock is under way, this is work that another worker left, or the pull was prefetched.
        exchange: Future[Any] = (client.push(step.work, step._base, gradient, gate, rows, weight=weight) if alone else
                                 client.push_pull(step.work, step._base, gradient, self._views[1], gate, rows, weight=weight))
        if weight is not None and exchange.done():
            # A weight that is refused is known at once.
            try:
                exchange.result()
            except ConfigError:
                raise
            except Error:
                pass  # the loop's
        if alone:
            self._pushes.append((exchange, gradient))
        else:
            self._next = step.work.clock + 1, exchange, gradient

    def prefetch_rows(self, work: Work, keys: Mapping[str, Keys]) -> None:
        if work.examples_left <= work.examples:
            return
        clock, rows = work.clock + work.last_of_clock, RowSet(keys, self.client.tables)
        self._early.append((clock, rows, self.client.pull_rows(clock, rows.rows)))

    def early_rows(self, clock: int, table: str, keys: Keys) -> Floats | None:
        """The rows if they were asked for early, all of them."""
        for at, rows, future in self._early:
            if at == clock and table in rows.rows:
                past = future.result().past
                values, found = rows.find(table, keys)
                if found.all() and not past:
                    return values
        return None

    def _begin_pull(self, clock: int) -> None:
        self._next = clock, self.client.pull(clock, self._views[1]), None

    def _find_weights(self, clock: int) -> bool:
        """Makes self._views[0] the weights of the clock. False: the others were faster."""
        while self._at != clock:
            if self._next is not None and self._next[0] != clock:
                self._arrive()  # the others were faster
                continue
            if self._next is None:
                self._begin_pull(clock)
            weights = self._arrive()
            if weights.past:
                return False
            self._views.reverse()
            self._at, self._base = clock, weights
        return True

    def _arrive(self) -> Weights:
        assert self._next is not None
        future: Future[Weights | tuple[Pushed, Weights]]
        (_, future, gradient), self._next = self._next, None
        result = self._wait(future)
        if isinstance(result, tuple):
            self._pushed(result[0], gradient)
            return result[1]
        return result

    def _pushed(self, pushed: Pushed, gradient: Arrays | None) -> None:
        if not pushed.applied:
            _log.warning("a push was not applied: %s", pushed.reason)
        elif self._recycles and isinstance(gradient, Gradient):
            self._spare.append(gradient)

    def _collect(self, wait: bool) -> None:
        left = []
        for push, gradient in self._pushes:
            if wait or push.done():
                self._pushed(self._wait(push), gradient)
            else:
                left.append((push, gradient))
        self._pushes = left


class _Progress:
    """The sums that a client reports, and the line that shows them here."""

    def __init__(self) -> None:
        self.restart()
        self._begun = False
        self._line: ProgressLine | None = None

    def restart(self) -> None:
        """A membership begins: a client reports the batches since it joined."""
        # As Client.set_progress() has them.
        self._sums = [0, 0, 0.0, 0, 0.0, 0]

    def begin(self, client: Client) -> None:
        """A step begins."""
        if not self._begun and client.shows_progress:
            self._line = ProgressLine(sys.stderr, client.train_examples)
        self._begun = True

    def close(self) -> None:
        if self._line is not None:
            self._line.close()

    def add(self, client: Client, work: Work, loss: float | None) -> None:
        if self._line is not None:
            self._line.add(work, loss)
        if loss is None:
            return
        # A NaN would stay in the sum for ever, even if the job continues.
        if not math.isfinite(loss):
            self._sums[5] += 1
        else:
            self._sums[0] += work.examples
            self._sums[1] += 1
            self._sums[2] += loss * work.examples
            if work.examples_left <= client.train_examples:
                self._sums[3] += work.examples
                self._sums[4] += float(np.float32(loss * work.examples))
        client.set_progress(*self._sums)  # type: ignore[arg-type]


def run(client: Client, result: Arrays | None = None, result_rows: Rows | None = None,
        recycles: bool = False, seeds: bool = True) -> Iterator[Step]:
    """Yields each step of the job that this worker has to do, until the job is done; then it has left the job.

    result: the model's tensors, float32, which get the newest weights when the job's examples are done; and result_rows
        the rows of their keys, of the same version.
    recycles: the caller uses no step.gradient after its push, so that a later step may have the same memory.
    seeds: numpy.random and `random` are seeded for each step; otherwise the caller does so.

    A membership that is lost (the lease ended, or the job went back to a checkpoint) begins again, as long as there is
    progress, which join() knows. Other errors are raised.
    """
    if result is not None:
        # What is wrong with them must not show when the job is done.
        client.model.place(result, "steps", writeable=True)
        client.tables.place(result_rows, "steps", writeable=True)
        client._evaluations.rows = result_rows
    with contextlib.closing(_Progress()) as progress:
        yield from _memberships(client, result, result_rows, progress, recycles, seeds)


def _memberships(client: Client, result: Arrays | None, result_rows: Rows | None, progress: _Progress,
                 recycles: bool, seeds: bool) -> Iterator[Step]:
    drained: Drained | None = None
    while True:
        membership: _Membership | None = None
        is_member = False
        calls = client._work_calls
        try:
            try:
                if not client.joined:
                    try:
                        client.join()
                    except PeerLost:
                        if drained is not None:
                            raise drained from None  # no server has come in the place of the ones that were drained
                        raise
                is_member = True
                progress.restart()
                membership = _Membership(client, progress, recycles, seeds)
                yield from membership.run()
            except JobDone as done:
                # This worker stood still, or came late, while others did all the work; or an earlier run has done it, and its servers
                # are in this process again.
                if not client._was_in and client.resumed_from:
                    if result is not None:
                        client.load_resumed(result, result_rows).result()
                    say(f"the job was done before: {client.resumed_from}")
                    return
                if result is not None and not client.joined:
                    raise
                _log.info("%s", done)
                if not client.joined:
                    return
            client._evaluations.at_end(client)
            if result is not None:
                client.snapshot(result, result_rows).result()
            client.leave()
            return
        except (Fenced, Drained) as fenced:
            if not is_member:
                raise  # join()
            drained = fenced if isinstance(fenced, Drained) else client.drained()
            # leave() itself may have found it out, and a step may have joined again.
            if client.joined and client._work_calls is calls:
                client.leave(Fenced(str(fenced)))
            if not client.joined:
                _log.warning("%s; joining again", fenced)
        if membership is not None:
            membership.free()
