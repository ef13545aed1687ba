"""A job whose servers and workers are actors of a Ray cluster: docs/ray.md is the guide."""
from __future__ import annotations

import os
import pathlib
import subprocess
import tempfile
from typing import Any, Callable, Mapping, Sequence

from .._library import program as find_program
from ..errors import ConfigError
from ..job import Job
from .supervisor import Plan, Result, Supervisor

__all__ = ["Result", "run"]

# The servers' wait for each other is at least this long, in seconds: Ray needs some to start an actor elsewhere.
_SERVER_WAIT = 60


def run(program: Callable[[dict[str, Any]], Any] | str | os.PathLike[str] | Sequence[str],
        job: str | os.PathLike[str] | Mapping[str, Any], ps: int = 1, workers: int = 1, *,
        resources: Mapping[str, float] | None = None, ps_resources: Mapping[str, float] | None = None, restarts: int = 3,
        tls: bool = True, overrides: Sequence[str] = (), start_seconds: float = 30) -> Result:
    """Trains the job with actors of the Ray cluster that this process is connected to, and waits for its end.

    program: a function, which each worker's actor calls with the job's config, a dict; or a Python script, as a path or as a
        list with its arguments, which must be there on every node (runtime_env's working_dir brings it). Either makes a
        weir.torch.Optimizer or another client without a cluster of its own.
    job: as for weir.torch.Optimizer. The config is read here; its paths are those of the nodes.
    ps, workers: how many servers and workers. overrides: as of weir.Job.
    resources, ps_resources: of each worker and of each server, as Ray names them: {"CPU": 4, "GPU": 1}. Default: {"CPU": 1}.
    restarts: how often each task that was lost, with its node or alone, is started again where there is room. A server is, if the
        job has a checkpoint.directory that all nodes can reach; if ps:0 was lost, all tasks are.
    tls: mutual TLS between the tasks, with certificates made for this job. False: what travels between nodes is in plain text.
    start_seconds: how long the tasks may wait for room in the cluster.

    Raises what ended the job: the exception of a worker's program, or a weir.Error with the words of the task that failed first.
    ConfigError: the config is wrong, the cluster lacks resources, or a node has another version of Weir. The job's processes end
    with this function, also by Ctrl-C or ray.cancel(); then a job with checkpoints saves one first.
    """
    if ps < 1:
        raise ConfigError(f"ps must be at least 1, got {ps}")
    config = Job(job, [*overrides, f"cluster.workers={workers}"]).config
    wait = max(_SERVER_WAIT, config["cluster"]["server_wait_seconds"])
    sets = [*overrides, f"cluster.workers={workers}", f"cluster.server_wait_seconds={wait}"]
    command = None if callable(program) else [program] if isinstance(program, (str, os.PathLike)) else list(program)
    plan = Plan(Job(config, sets[-1:]).config, sets, program if command is None else [os.fspath(word) for word in command],
                {"ps": dict(ps_resources or {"CPU": 1}), "worker": dict(resources or {"CPU": 1})}, restarts, start_seconds,
                _certificates(ps, workers) if tls else {})
    supervisor = Supervisor(plan, [("ps", i) for i in range(ps)] + [("worker", i) for i in range(workers)])
    try:
        return supervisor.run()
    except KeyboardInterrupt:
        supervisor.save()
        raise
    finally:
        supervisor.end()


def _certificates(ps: int, workers: int) -> dict[str, str]:
    """Of a CA for this job alone, whose key nobody keeps."""
    with tempfile.TemporaryDirectory(prefix="weir-") as folder:
        made = subprocess.run([find_program("weir"), "certs", "init", folder + "/certs", f"--spec=dns:ps=ps:{ps},worker=worker:{workers}"],
                              capture_output=True, text=True, check=False)
        if made.returncode != 0:
            raise ConfigError(made.stderr.strip())
        return {path.name: path.read_text() for path in pathlib.Path(folder, "certs").iterdir() if path.name != "ca.key"}
