"""What starts the tasks of a job on a Ray cluster, and decides what follows from their ends."""
from __future__ import annotations

import collections
import json
import secrets
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError, TaskCancelledError

from .. import __version__
from ..errors import ConfigError, Error, JobDone, PeerLost, StorageError
from ..progress import say
from .task import WeirTask

# How long ps:0 may take for a checkpoint after Ctrl-C, in seconds.
_SAVE = 60.0
# How long servers may still run when all programs have ended, beside the lease, in seconds.
_LINGER = 30.0
# A task may end because another has failed, whose own end may be seen this much later, in seconds.
_SETTLE = 10.0
# A worker that was started again just before the job's end, and comes when the servers have gone, is ended so much later, in seconds.
_STRAGGLERS = 10.0
_PEER_LOST, _KILLED = 138, 137
_ERRORS: dict[int, type[Error]] = {78: ConfigError, 74: StorageError, _PEER_LOST: PeerLost}


class Result(NamedTuple):
    """What run() returns."""

    #: As `weir up --summary` writes it, without what is of `weir up` itself.
    summary: dict[str, Any]
    #: What the program has returned, by worker. None: a script's, or that of a worker that was lost.
    values: list[Any]


@dataclass
class Plan:
    """What a job needs, whatever its tasks do."""

    config: dict[str, Any]
    sets: list[str]
    program: Any  # a function, or a command
    resources: dict[str, dict[str, float]]  # by type of task
    restarts: int
    start_seconds: float
    certificates: dict[str, str]  # texts by name of file; empty: no TLS
    token: str = field(default_factory=lambda: secrets.token_hex(32))

    def files(self, kind: str, index: int) -> dict[str, str]:
        """The texts of the files that a task's environment names."""
        found = {"WEIR_TOKEN_FILE": self.token}
        if self.certificates:
            own = f"{kind}-{index}"
            found.update(WEIR_TLS_CA=self.certificates["ca.pem"], WEIR_TLS_CERTIFICATE=self.certificates[own + ".pem"],
                         WEIR_TLS_KEY=self.certificates[own + ".key"])
        return found


@dataclass
class _Task:
    kind: str
    index: int
    actor: Any = None
    #: What the actor does: it begins, and then runs the task. None: the task has ended for good.
    call: Any = None
    runs: bool = False
    address: str = ""  # of the newest incarnation that has begun
    started: float = 0.0
    restarts: int = 0
    value: Any = None

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.index}"


@dataclass
class _End:
    """How an incarnation of a task has failed."""

    task: _Task
    code: int
    error: BaseException


_Actor: Any = ray.remote(WeirTask)


class Supervisor:
    """Starts the tasks of a job, and decides what follows from their ends, as `weir up --restart` does."""

    def __init__(self, plan: Plan, tasks: list[tuple[str, int]]):
        self._plan = plan
        self._tasks = [_Task(kind, index) for kind, index in tasks]
        self._servers = [task for task in self._tasks if task.kind == "ps"]
        self._workers = [task for task in self._tasks if task.kind == "worker"]
        self._summary: dict[str, Any] | None = None
        self._done_at = 0.0
        self._ends: list[_End] = []  # that may explain the failure of the job
        self._failed_at: float | None = None
        self._some_worker_done = False
        self._idle_since: float | None = None  # no worker has run since then

    def run(self) -> Result:
        self._start_together(self._tasks)
        while self._summary is None or any(worker.call for worker in self._workers):
            calls = {task.call: task for task in self._tasks if task.call is not None}
            ready, _ = ray.wait(list(calls), timeout=1) if calls else ([], [])
            for call in ready:
                if calls[call].call is call:  # not, if all tasks were started again meanwhile
                    self._on_return(calls[call])
            self._check()
        return Result({**self._summary, "restarts": {t.name: t.restarts for t in self._tasks if t.restarts}},
                      [worker.value for worker in self._workers])

    def save(self) -> None:
        """Has ps:0 save a checkpoint, if it can."""
        first = self._servers[0]
        if self._plan.config.get("checkpoint", {}).get("directory") and first.runs and first.call is not None:
            say("saving a checkpoint and ending the job; a second Ctrl-C ends it at once")
            first.actor.stop.remote()
            ray.wait([first.call], timeout=_SAVE)

    def end(self) -> None:
        """Kills all actors, and with them their processes."""
        for task in self._tasks:
            self._kill(task)

    # ---- starting

    def _kill(self, task: _Task) -> None:
        task.call = None
        if task.actor is not None:
            ray.kill(task.actor)
            task.actor = None

    def _start(self, task: _Task) -> None:
        self._kill(task)
        wanted = dict(self._plan.resources[task.kind])
        options = {"num_cpus": wanted.pop("CPU", 0), "num_gpus": wanted.pop("GPU", 0), "memory": wanted.pop("memory", None)}
        in_process = task.kind == "worker" and callable(self._plan.program)
        task.actor = _Actor.options(
            **options, resources=wanted, max_restarts=0, max_task_retries=0,
            # A function has the main thread. A process is waited for by one thread, and ended by another.
            max_concurrency=1 if in_process else 2, scheduling_strategy="SPREAD" if task.kind == "ps" else "DEFAULT").remote()
        task.runs, task.started = False, time.monotonic()
        task.call = task.actor.begin.remote()

    def _start_together(self, tasks: list[_Task]) -> None:
        """Runs them once all have a place: half a job would hold what another one needs."""
        for task in tasks:
            self._start(task)
        deadline, waiting = time.monotonic() + self._plan.start_seconds, list(tasks)
        while waiting:
            ready, _ = ray.wait([task.call for task in waiting], timeout=max(0, deadline - time.monotonic()))
            if not ready:
                raise self._no_room(waiting)
            for task in [task for task in waiting if task.call in ready]:
                try:
                    self._learn_address(task)
                    waiting.remove(task)
                except RayError:  # its node was just lost, say
                    self._start(task)
        for task in tasks:
            self._launch(task)

    def _learn_address(self, task: _Task) -> None:
        try:
            version, task.address = ray.get(task.call)
        except RayError as error:
            # Its process or its node may also be lost just now.
            if not isinstance(error, RayTaskError) and not (isinstance(error, RayActorError) and error.actor_init_failed):
                raise
            raise ConfigError(f"{task.name} could not be started; is weir {__version__} installed on every node? {error}") from error
        if version != __version__:
            raise ConfigError(f"{task.address.rpartition(':')[0]}, the node of {task.name}, has weir {version}, and this process has "
                              f"{__version__}; install the same version on all nodes")

    def _launch(self, task: _Task) -> None:
        task.runs = True
        addresses = [server.address for server in self._servers]
        cluster: dict[str, Any] = {"ps": addresses}
        if task.kind == "worker":
            cluster["worker"] = {str(task.index): "127.0.0.1:1"}  # nobody connects to a worker
        variables = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": task.kind, "index": task.index}}),
                     "WEIR_SET": json.dumps(self._plan.sets)}
        rest = (variables, self._plan.files(task.kind, task.index))
        if task.kind == "ps":
            task.call = task.actor.serve.remote(json.dumps(self._plan.config), *rest)
        elif callable(self._plan.program):
            task.call = task.actor.call.remote(self._plan.program, self._plan.config, *rest)
        else:
            task.call = task.actor.execute.remote(self._plan.program, *rest)

    # ---- ends

    def _on_return(self, task: _Task) -> None:
        if not task.runs:
            try:
                self._learn_address(task)
            except (ConfigError, RayError) as failed:  # its node may have been lost, or be a new one
                end: _End | None = _End(task, _KILLED, failed)
            else:
                self._launch(task)
                return
        else:
            end = self._end_of(task)
        if end is None:
            self._kill(task)
            self._some_worker_done |= task.kind == "worker"
        elif self._may_restart(end):
            self._restart(end)
        else:
            self._kill(task)
            self._on_end(end)

    def _end_of(self, task: _Task) -> _End | None:
        """How the call has ended; None: well."""
        try:
            result = ray.get(task.call)
        except TaskCancelledError:
            raise
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, JobDone):
                return None
            return _End(task, cause.exit_code if isinstance(cause, Error) else 1, error)
        except RayError as error:  # the actor, its process or its node is gone
            return _End(task, _KILLED, PeerLost(f"{task.name} at {task.address} was lost: {error}"))
        if task.kind == "worker" and callable(self._plan.program):
            task.value = result
            return None
        code, lines = result[:2]
        if code == 0:
            if task is self._servers[0]:
                self._summary, self._done_at = json.loads(result[2]), time.monotonic()
            return None
        text = f"{task.name} at {task.address} exited with {code}; its last lines:\n" + "\n".join(lines)
        failure = _ERRORS.get(_PEER_LOST if code > 127 else code, Error)(text)
        failure.exit_code = code
        return _End(task, code, failure)

    def _may_restart(self, end: _End) -> bool:
        # Codes up to 127 are permanent. A task that comes to a job that is done would only wait.
        if end.code <= 127 or end.task.restarts >= self._plan.restarts or self._summary is not None or self._failed_at is not None:
            return False
        return bool(self._plan.config.get("checkpoint", {}).get("directory")) if end.task.kind == "ps" else not self._some_worker_done

    def _restart(self, end: _End) -> None:
        task = end.task
        self._ends.append(end)
        task.restarts += 1
        say(str(end.error))
        say(f"{task.name} is started again ({task.restarts} of {self._plan.restarts})" +
            (", and with it all tasks, from the newest checkpoint" if task is self._servers[0] else ""))
        if task is self._servers[0]:
            # All others know ps:0 by its address, which was its node's.
            self._start_together([other for other in self._tasks if other.kind == "ps" or other.call is not None])
        else:
            self._start(task)

    def _on_end(self, end: _End) -> None:
        self._ends.append(end)
        on_nonfinite = self._plan.config["consistency"]["on_nonfinite"]
        goes_on = end.task.kind == "worker" and (end.code > 127 or (end.code == 70 and on_nonfinite == "skip_worker"))
        if self._summary is not None or goes_on:
            say(str(end.error))
            say(f"the job {'is done anyway' if self._summary is not None else f'continues without {end.task.name}'}")
        else:
            self._failed_at = self._failed_at or time.monotonic()

    def _check(self) -> None:
        """Raises what has ended the job, if something has."""
        now = time.monotonic()
        if self._failed_at is not None:
            cause = min(self._ends, key=self._rank)
            if self._rank(cause) == 0 or now - self._failed_at >= _SETTLE:
                raise cause.error
            return
        running = [worker for worker in self._workers if worker.call is not None and worker.runs]
        if self._summary is not None:
            for worker in running if now - self._done_at > _STRAGGLERS else ():
                if worker.restarts and self._done_at - worker.started < _LINGER:
                    say(f"{worker.name} was started again, and still runs {_STRAGGLERS:g} s after the job's end; ended")
                    self._kill(worker)
            for worker in self._workers:
                if not worker.runs:
                    self._kill(worker)
            return
        late = [task for task in self._tasks if task.call is not None and not task.runs and
                now - task.started > self._plan.start_seconds and (task.kind == "ps" or not running)]
        if late:
            raise self._no_room(late)
        if any(worker.call is not None for worker in self._workers):
            return
        self._idle_since = self._idle_since or now
        if not self._some_worker_done:
            self._failed_at = now
        elif now - self._idle_since > _LINGER + self._plan.config["cluster"]["lease_seconds"]:
            raise PeerLost("the programs of all workers have ended, but the job is not done; they join it with the loop over "
                           "weir.torch.Optimizer(...).loader() or with a weir.Client, and must not leave before the loop's end")

    def _rank(self, end: _End) -> int:
        """The end with the lowest rank explains the failure of a job; of two, the first."""
        if end.code == _PEER_LOST:
            return 2
        # Training that cannot continue is found by a worker first. What was started again may have been survived.
        return 1 if end.code > 127 or (end.code == 70 and end.task.kind == "ps") else 0

    def _no_room(self, waiting: list[_Task]) -> Error:
        cluster: Any = ray  # whose functions have no types
        total, free = cluster.cluster_resources(), cluster.available_resources()
        wanted: collections.Counter[str] = collections.Counter()
        for task in self._tasks:
            wanted.update(self._plan.resources[task.kind])
        shape = "; ".join(f"{name} {amount:g}, of which the cluster has {total.get(name, 0):g}, {free.get(name, 0):g} free"
                          for name, amount in wanted.items())
        nodes = sum(node["Alive"] for node in cluster.nodes())
        error = ConfigError if any(amount > total.get(name, 0) for name, amount in wanted.items()) else PeerLost
        return error(f"{', '.join(task.name for task in waiting)} did not start within {self._plan.start_seconds:g} s on the cluster's "
                     f"{nodes} {'node' if nodes == 1 else 'nodes'}. {len(self._servers)} servers of {self._plan.resources['ps']} and "
                     f"{len(self._workers)} workers of {self._plan.resources['worker']} want {shape}. Ask for less (ps=, workers=, "
                     "resources=), add nodes, or raise start_seconds= if nodes or other jobs' ends are on their way")
