"""A worker's membership in a job."""
from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING, Any, Iterator, Mapping, Sequence, overload

from . import _library, metrics
from ._ending import LAST_CALL, Terminated, close_at_end, end_on_sigterm, terminated
from ._library import library
from .errors import ConfigError, Drained, Error, Fenced, JobDone, check, made
from .evaluations import Evaluate, Evaluated, Evaluations, Order, Result
from .exchange import Gate, Gradient, Pushed, View, Weights, Work, WorkCall, WorkCalls, pull_order, push_order, take_exchange
from .fingerprints import EXAMPLES, in_cluster, of_program, of_training_set
from .future import Future, end_of
from .job import Arrays, ExampleOrder, Job, Model, SupportsDLPack, Tensor
from .progress import is_live, say
from .tables import PlacedRows, Rows, Tables

if TYPE_CHECKING:
    from .steps import Step

_LEFT = "its `with` block ended before the job was done; for a shorter job set train.epochs or train.examples"


class Client:
    """A worker of a job: client/client.h on NumPy arrays, or on those of other packages that export them by DLPack
    (PyTorch, JAX). They are float32, C-contiguous, in the host's memory, and used where they are.

    job: a path, a mapping with the JSON's fields, or a Job.
    tensors: the model, name -> Tensor, shape, or array of the initial values, in an order that is the same for every
        worker. Where all tensors have values (Tensor.values, or arrays), one worker of the job uploads its own, once,
        before the first step, unless the job has checkpoint.init_from or continues from checkpoints. They are read by join()
        and then no more.
    train_examples: the size of the training set, the same for every worker; 0 for a reader.
    cluster, task, token_file: as the flags of `worker`; by default TF_CONFIG and WEIR_TOKEN_FILE of the environment
        say it. Without a cluster the job runs in this process, with `servers` servers on loopback. In a cluster with
        TLS, WEIR_TLS_CA, WEIR_TLS_CERTIFICATE and WEIR_TLS_KEY name this worker's files. overrides: as of Job.
    history: a file that gets every answer of the servers, as lines of JSON; "{task}" in the path becomes "worker-0".
    log_level: "debug", "info", "warning", "error"; the log goes to stderr. Default: info in a cluster, else warning.
    progress: steps() shows on stderr how far the job is, in one line. By default where the servers are in this process,
        and stderr is a terminal or a notebook.

    evaluate: returns {"loss": ...}, with "accuracy", "auc" and "examples" if there are such, of weights, which it gets as
        arrays by name. steps() calls it when the job asks this worker for the evaluation of an epoch's end
        (evaluation.every_epochs), and at the job's end. result_rows of steps() are of the same version then.
    test: the same for the job's end alone, on examples that evaluate does not have; evaluate is for validation then.

    train_set: the training set, of which join() compares a few examples with those of the other workers: an array, a tuple
        or dict of arrays, or anything that has an example at each index. By default nothing is compared but train_examples.
    code_version: text that must be the same for every worker. By default in sync that of the program's main file.
    fingerprints: name -> value, at most 8 texts of 64 and 128 bytes: what else must be the same for every worker.

    reader: this client reads the weights of a cluster's job, and takes no part in training. snapshot(), wait_draining() and,
        with evaluate or test, evaluations() are for it.

    Rows of the job's embedding tables are {"table": (keys, values)}: keys is int64 or uint64 [n], in any order and perhaps
    several times, and is read before a call returns; values is float32 [n, dim], used where it is. An int64 key means the
    uint64 of the same bits. ConfigError: the job has no such table, or keys or values have another type or shape.

    `with Client(...) as client:` joins, and leaves at the end: because the work is done (next_work() has returned None), or else
    with a reason, which is that of the exception if there is one. A worker that gives up leaves the job to the others.
    steps() is the whole loop; next_work(), pull(), push() are its parts.

    Thread-safe. Calls that wait end with Ctrl-C. In a forked child all its calls raise ConfigError.
    """

    def __init__(self, job: str | os.PathLike[str] | Mapping[str, Any] | Job,
                 tensors: Mapping[str, Tensor | Sequence[int] | SupportsDLPack], train_examples: int, *,
                 cluster: str | None = None,
                 task: str | None = None, token_file: str | None = None, history: str | None = None,
                 log_level: str | None = None, servers: int = 1, overrides: Sequence[str] = (), reader: bool = False,
                 progress: bool | None = None, train_set: Any = None, code_version: str | None = None,
                 fingerprints: Mapping[str, str] | None = None, evaluate: Evaluate | None = None, test: Evaluate | None = None):
        self.job = job if isinstance(job, Job) else Job(job, overrides)
        if not isinstance(tensors, Mapping) or not hasattr(train_examples, "__index__"):
            raise ConfigError(f"tensors must be a mapping, and train_examples a whole number; got {type(tensors).__name__} and "
                              f"{type(train_examples).__name__}. The order is weir.Client(job, tensors, train_examples)")
        self.model = Model(tensors)
        #: The job's embedding tables: name -> dim, the values of a row.
        self.tables = Tables(self.job)
        self.train_examples = train_examples
        self._evaluations = Evaluations(self.job, evaluate, test)
        alike = dict(fingerprints or {})
        if not reader:
            self.order = ExampleOrder(train_examples, int(self.job.config["seed"]))
            if train_set is not None and in_cluster(cluster):
                alike.update(of_training_set(train_set, self.order(0, min(EXAMPLES, train_examples)).tolist()))
            alike.update(of_program(code_version, self.job.get("consistency.mode") == "sync"))
        if servers < 1:
            raise ConfigError(f"servers must be at least 1, got {servers}")

        def encoded(text: str | None) -> bytes | None:
            return None if text is None else os.fsencode(text)

        pairs = [_library.Fingerprint(name.encode(), value.encode()) for name, value in alike.items()]
        options = _library.Options(encoded(cluster), encoded(task), encoded(token_file), encoded(history),
                                   encoded(log_level), train_examples, servers, reader,
                                   self._evaluations.of_epochs, (_library.Fingerprint * len(pairs))(*pairs), len(pairs))
        opened = library.open(self.job._handle, ctypes.byref(options), self.model.array, len(self.model.names))
        self._handle = Future(opened, lambda future: made(library.take_client, future)).result()
        self._closed = False
        self._joined = self._was_in = self._in_process = False
        # Of the newest membership.
        self._rank = 0
        self._reader = reader
        # Of this membership.
        self._work_calls = WorkCalls()
        # Nobody can join any more.
        self._done: JobDone | None = None
        # Of stop().
        self._stopped: str | None = None
        self._progress = progress
        close_at_end(self)

    # ---- membership

    def join(self, timeout: float | None = None) -> None:
        """Enters the job and waits until it may start, at most cluster.start_seconds. JobDone: its examples are done.
        ConfigError names the first difference between this program and the job. timeout: seconds; then TimeoutError."""
        if self._done is not None:
            raise self._done
        initial = self.model.initial
        values = self.model.pointers(initial, "initial values", writeable=False) if initial else None
        try:
            end_of(library.join(self._live(), values), initial).result(timeout)
        except JobDone as done:
            self._done = done
            raise
        if not self._was_in and self.resumed_from:
            say(f"going on from {self.resumed_from}")
        self._joined = self._was_in = True
        membership = self._membership()
        self._rank, self._in_process = int(membership.worker), bool(membership.in_process)
        end_on_sigterm()
        if self._stopped is not None:
            self._ask_to_stop(self._stopped)  # ps:0 may have been started again

    def leave(self, failure: BaseException | None = None, timeout: float | None = None) -> None:
        """Ends the membership. failure: why this worker gives up; None: the work is done. Servers in this process end
        with the job, unless the failure is a Fenced, and this waits for that. A KeyboardInterrupt, or SIGTERM, makes them save the job
        first, if it has a checkpoint.directory; the call then raises: Drained says from where the job continues, another
        Error why it was not saved. timeout: seconds; then TimeoutError, and the call continues by itself."""
        self._joined = False
        self._work_calls.end()
        self._work_calls = WorkCalls()
        reason = None if failure is None else (str(failure) or type(failure).__name__).encode()
        if isinstance(failure, (KeyboardInterrupt, Terminated)):
            kind = 2  # drained: the process is asked to end, and may come again
            reason = b"SIGTERM" if isinstance(failure, Terminated) else b"Ctrl-C"
        else:
            kind = failure.kind if isinstance(failure, Error) else 7
        end_of(library.leave(self._live(), kind, reason)).result(timeout)

    def give_up(self, failure: BaseException | str) -> None:
        """Leaves with the failure as its reason, if this client is in the job. Raises nothing but a second Ctrl-C: the reason says more than
        what goes wrong here. Takes a moment at most, or where Ctrl-C saves the job cluster.server_wait_seconds."""
        if self._closed or not self._joined:
            return
        failure = terminated() or failure
        wait = self.save_seconds() if isinstance(failure, (KeyboardInterrupt, Terminated)) else 0
        saves = wait > 0
        try:
            self.leave(failure if isinstance(failure, BaseException) else Error(failure), timeout=LAST_CALL + wait)
        except Drained as saved:
            say(str(saved).removeprefix("drained: "))
        except TimeoutError:
            if saves:
                say(f"the job was not saved within cluster.server_wait_seconds ({wait:g} s)")
        except Error as error:
            if saves:
                say(f"the job was not saved: {error}")

    def save_seconds(self) -> float:
        """How long a job of this process that is asked to end may take to save itself; 0: it does not."""
        saves = self._joined and self._in_process and bool(self.job.get("checkpoint.directory"))
        return float(self.job.get("cluster.server_wait_seconds", 0)) if saves else 0.0

    def drained(self) -> Drained | None:
        """If this membership has ended since the job is asked to end, and ps:0 has said so: what it said."""
        try:
            self.take_order()
        except Drained as told:
            return told
        except Error:
            pass
        return None

    def close(self) -> None:
        """Ends everything; a membership that was not left, too. Later calls raise."""
        if not self._closed:
            self._closed = True
            self._work_calls.end()
            # Other threads may be in calls; the handle goes with the client.
            # An end that nobody waits for any more gets its moment when the interpreter ends.
            Future(library.close_client(self._handle), lambda f: None, memory=()).result()

    def __enter__(self) -> "Client":
        if not self._joined:
            try:
                self.join()
            except JobDone:
                # steps() has the result, and no steps.
                if not self.resumed_from:
                    raise
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            if error is not None or not (self._reader or self._work_calls.finished):
                self.give_up(error or _LEFT)
            elif self._joined:
                self.leave()
        finally:
            self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            try:
                self.close()
            finally:
                library.free_client(self._handle)

    def _live(self) -> int:
        if self._closed:
            raise ConfigError("this client is closed")
        return self._handle

    @property
    def joined(self) -> bool:
        """Whether this client is in the job: it has joined, and not left."""
        return self._joined

    @property
    def worker(self) -> int:
        """This worker's rank in the job."""
        return int(self._membership().worker)

    @property
    def start_clock(self) -> int:
        """The clock at which this membership began."""
        return int(self._membership().start_clock)

    @property
    def leading(self) -> bool:
        """Whether this worker has the lowest rank of the live ones."""
        return bool(self._membership().leading)

    @property
    def draining(self) -> bool:
        """Whether the job's examples are done."""
        return bool(self._membership().draining)

    def wait_draining(self, timeout: float) -> bool:
        """Waits until the job's examples are done, at most `timeout` seconds. Returns whether they are."""
        end_of(library.wait_draining(self._live(), timeout)).result()
        return self.draining

    def _membership(self) -> _library.Membership:
        membership = _library.Membership()
        check(library.get_membership(self._live(), ctypes.byref(membership)))
        return membership

    @property
    def gains_from_gate(self) -> bool:
        """Whether a push gains time by beginning before its gradient is complete: the gradient travels in several
        messages, and other workers' pushes do not overtake it (docs/transports.md)."""
        return bool(self._membership().gains_from_gate)

    def set_progress(self, examples: int, batches: int, loss_sum: float, last_examples: int = 0,
                     last_loss_sum: float = 0.0, not_finite: int = 0) -> None:
        """The batches since this client joined, for status displays and for train.divergence; call it after each batch.
        loss_sum: over batches, mean loss x examples. last_examples, last_loss_sum: of the job's last epoch. not_finite: batches whose loss
        is not finite, which count nowhere else."""
        progress = _library.Progress(examples, batches, loss_sum, last_examples, last_loss_sum, not_finite)
        check(library.set_progress(self._live(), ctypes.byref(progress)))

    def set_computing(self, computes: bool) -> None:
        """Whether the program computes a gradient from now on, for the worker's utilization (docs/metrics.md). steps() says so itself."""
        library.set_computing(self._handle, computes)

    @property
    def resumed_from(self) -> str:
        """Where the servers are in this process: the checkpoint that the job continues from; "": there is none."""
        return os.fsdecode(library.resumed_from(self._live()))

    @property
    def shows_progress(self) -> bool:
        """Whether steps() shows a line of progress."""
        return self._membership().in_process and is_live(sys.stderr) if self._progress is None else self._progress

    def evaluations(self) -> Iterator[Evaluated]:
        """For a reader: calls evaluate for each end of an epoch that the job asks it for, and test, or else evaluate, for the job's
        end; reports the results, and yields each. Joins again where the membership was lost."""
        return self._evaluations.of_reader(self)

    def take_order(self, wait: float = 0) -> Order | None:
        """The order to evaluate the end of an epoch, if this member has one: a member that was made with evaluate. Each comes once.
        wait: for one, so many seconds at most, or until the job's examples are done; Ctrl-C is heard afterwards."""
        order = _library.OrderToEvaluate()
        check(library.take_order(self._live(), wait, ctypes.byref(order)))
        return Order(order.id, order.epoch) if order.id else None

    def awaits_evaluation(self) -> bool:
        """When the job's examples are done: whether this worker must evaluate the weights, and report() the result with
        final_sha256. Waits while that is another worker's task; False: the evaluation was made."""

        def take(future: int) -> bool:
            answer = ctypes.c_int()
            check(library.take_answer(future, ctypes.byref(answer)))
            return bool(answer.value)

        return Future(library.awaits_evaluation(self._live()), take).result()

    def report(self, of: Weights, *, loss: float, examples: int, accuracy: float | None = None, auc: float | None = None,
               order: Order | None = None, final_sha256: str | None = None) -> "Future[None]":
        """Tells the job the result of an evaluation of these weights, on this many examples: `weir status`, the dashboard
        and the summary have the newest one. loss: the mean over them. accuracy, auc: in [0, 1].

        order: the one that this answers.
        final_sha256: the weights are those of the job's end (`draining` was true before they were read), and this is the
        SHA-256 in hex of their values, little-endian float32 in the model's order.
        """
        result = Result(loss, accuracy, auc, examples).checked("report()")
        return self._report(of, result, order, final=final_sha256 is not None, sha256=final_sha256 or "")

    def _report(self, of: Weights | None, result: Result, order: Order | None = None, *, validation: bool = False, final: bool = False,
                sha256: str = "") -> "Future[None]":
        evaluation = result.to_library(order, validation, final, sha256)
        return end_of(library.report(self._live(), None if of is None else of._handle, ctypes.byref(evaluation)))

    def log(self, values: Mapping[str, Any] | None = None, /, *, reduce: str = "mean", weight: float | None = None,
            **named: Any) -> None:
        """Logs numbers (or arrays of one) by name: log(accuracy=0.9), or log({"val/accuracy": 0.9}). `weir status`, the dashboard,
        /metrics and the summary show of each name, over all workers and about the last epoch, the mean or, with reduce="last", the
        value of the latest step. A name keeps its kind; all workers together have at most 64 names.

        weight: of these values in the mean; by default the examples of the newest work. ConfigError: a name has other letters than
        [A-Za-z0-9_.-/], or a value is not finite; then nothing is logged.
        """
        metrics.log(self._live(), {**(values or {}), **named}, reduce, weight)

    def log_auc(self, name: str, scores: Any, labels: Any) -> None:
        """Logs the scores of examples, in [0, 1], and their labels, 0 or 1, as log() does, of which the area under the ROC curve is
        shown under the name, of all workers together. Scores are told apart to 1/1024. At most 4 names have an AUC."""
        metrics.log_auc(self._live(), name, scores, labels)

    def stop(self, reason: str) -> None:
        """Ends the job well before all of its examples are done, on all workers, with a last checkpoint; the loop ends by itself, soon: in
        sync after the open step, else once each worker has done the batches that it was given, at most 64. The first reason of all
        workers counts, which `weir status` and the summary show. A job that is at its end anyway stays as it is.

        reason: 1 to 1,000 bytes, for people. ConfigError: ps:0 is of an earlier version, which cannot stop a job.
        """
        if not isinstance(reason, str):
            raise ConfigError(f"stop: the reason must be text, got {type(reason).__name__}")
        if not self._joined:
            raise Error("stop() is for a worker that is in the job; call it in the loop")
        self._ask_to_stop(reason)
        self._stopped = self._stopped or reason

    def _ask_to_stop(self, reason: str) -> None:
        try:
            end_of(library.stop(self._live(), reason.encode())).result()
        except Fenced:
            pass  # the loop finds it out, and join() asks again

    def load_resumed(self, into: Arrays, rows: Rows | None = None) -> "Future[None]":
        """Reads the weights of the checkpoint `resumed_from` into all of the model's tensors: those of a job that was done
        before, where join() raises JobDone. rows: their values get the row of each key. Error: there is no such checkpoint. The
        arrays must stay untouched until the future is done."""
        arrays, pointers = self.model.place(into, "load_resumed", writeable=True)
        placed = self.tables.place(rows, "load_resumed", writeable=True)
        return end_of(library.load_resumed(self._live(), pointers, placed.array, len(placed)), (arrays, placed))

    # ---- the loop

    def steps(self, result: Arrays | None = None, result_rows: Rows | None = None) -> Iterator["Step"]:
        """Yields each piece of work that this worker has to do, in every mode, until the job's examples are done; call
        push() of each. Joins if need be, joins again where the membership was lost, and leaves at the end.

        result: arrays for the model's tensors, which get the trained weights before this worker leaves; an empty dict gets arrays,
        too. With them result_rows get the rows of their keys. JobDone: the job was done before this worker came, so that there is
        no result; but where the servers are in this process, result and result_rows get what the job's last checkpoint has.
        """
        from .steps import run
        return run(self, result, result_rows)

    # ---- its parts

    def next_work(self, timeout: float | None = None) -> Work | None:
        """The next gradient to compute; waits while there is none. None: the job's examples are done, and this
        worker's pushes are acknowledged. TimeoutError: none came in `timeout` seconds; the next call continues the wait."""
        future = self.begin_next_work()
        try:
            return future.result(timeout)
        finally:
            future.give_up()

    def begin_next_work(self) -> WorkCall:
        """next_work() as a future. If that is dropped before its result is taken, the next call has its work; until then it has a
        work for itself, so where a wait was cut short (a coroutine that was cancelled, say) wait for the same future again."""
        if self._done is not None:
            raise self._done
        return self._work_calls.begin(self._live())

    def pull(self, clock: int, into: Arrays, rows: Rows | None = None) -> "Future[Weights]":
        """Reads the weights for `clock` into all of the model's tensors, which must stay untouched until the future is
        done. rows: their values get the row of each key, at the version of the weights."""
        return self._exchange(None, pull_order(self.model, self.tables, clock, into, rows), 1)

    def pull_rows(self, clock: int, rows: Rows) -> "Future[Weights]":
        """Reads rows for `clock`, as pull() does, and no tensors: the values get the row of each key, and must stay untouched
        until the future is done. A key without a row reads its initial values. Any number of calls may be made for a clock;
        in bounded and async each may read a newer version. With consistency.tables "async" it waits for no step and no
        worker, and the result is no base of a push."""
        return self._exchange(None, pull_order(self.model, self.tables, clock, None, rows), 1)

    def view(self, clock: int) -> "Future[View]":
        """Reads the weights for `clock` where they lie."""
        return self._exchange(None, pull_order(self.model, self.tables, clock, None, None, in_place=True), 1)

    def push(self, work: Work, base: Weights, gradient: Arrays, gate: Gate | None = None,
             rows: Rows | None = None, *, weight: Any = None) -> "Future[Pushed]":
        """Delivers the gradient of one piece of work, the mean over its examples. base: the weights that it was
        computed from. The gradient must stay unchanged until the future is done. gate: each of its tensors is still
        to be filled until it is ready there.

        rows: the gradient of rows, which is read before the call returns; that of a key which comes several times is summed.
        It takes effect together with the tensors' gradient, or neither does.

        weight: in sync, the gradient's weight in the mean of its step (Step.push())."""
        return self._exchange(push_order(self.model, self.tables, work, base, gradient, gate, rows, weight), None, 0)

    @overload
    def push_pull(self, work: Work, base: Weights, gradient: Arrays, into: Arrays, gate: Gate | None = None,
                  rows: Rows | None = None, next_rows: Rows | None = None, *,
                  weight: Any = None) -> "Future[tuple[Pushed, Weights]]": ...

    @overload
    def push_pull(self, work: Work, base: Weights, gradient: Arrays, into: None = None, gate: Gate | None = None,
                  rows: Rows | None = None, next_rows: Rows | None = None, *, weight: Any = None) -> "Future[tuple[Pushed, View]]": ...

    def push_pull(self, work: Work, base: Weights, gradient: Arrays, into: Arrays | None = None,
                  gate: Gate | None = None, rows: Rows | None = None,
                  next_rows: Rows | None = None, *, weight: Any = None) -> "Future[Any]":
        """push() and the pull() at the next clock, as one exchange; for the last work of a clock. Without `into` the
        weights are read where they lie, and are a View. base, gradient, gate, rows, weight: as of push(). next_rows: as of pull()."""
        push = push_order(self.model, self.tables, work, base, gradient, gate, rows, weight)
        return self._exchange(push, pull_order(self.model, self.tables, work.clock + 1, into, next_rows, in_place=into is None), slice(None))

    def snapshot(self, into: Arrays | None, rows: Rows | None = None) -> "Future[Weights]":
        """Reads the newest consistent weights, from outside the training: in sync those of one step. The result is no base
        of a push. into: the model's tensors; None: rows alone. rows: as of pull()."""
        arrays, pointers = (None, None) if into is None else self.model.place(into, "snapshot", writeable=True)
        placed = self.tables.place(rows, "snapshot", writeable=True)
        handle = library.snapshot(self._live(), pointers, placed.array, len(placed))
        model = self.model
        return Future(handle, lambda future: take_exchange(future, model, False)[1], (arrays, placed))

    def new_gradient(self) -> Gradient:
        """Memory for a gradient. Servers on this host read it in place."""
        handle, address = ctypes.c_void_p(), ctypes.c_void_p()
        check(library.new_gradient(self._live(), ctypes.byref(handle), ctypes.byref(address)))
        return Gradient(handle.value or 0, address.value or 0, self.model)

    def new_gate(self) -> Gate:
        """A gate for one push()."""
        return Gate(self.model)

    def _exchange(self, push: tuple[_library.Push, Any, PlacedRows] | None, pull: tuple[_library.Pull, Any] | None,
                  part: int | slice) -> Future[Any]:
        """part: of (Pushed, Weights), which the future has."""
        handle = library.exchange(self._live(), push and push[0], pull and pull[0])
        model, in_place = self.model, pull is not None and bool(pull[0].in_place)
        return Future(handle, lambda future: take_exchange(future, model, in_place)[part], (push and push[1], pull and pull[1]))
