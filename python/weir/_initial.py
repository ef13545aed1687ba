"""Initial weights that a program brings along."""
from __future__ import annotations

import contextlib
import ctypes
import json
import os
import tempfile
from typing import Iterator, Mapping

from ._library import library
from .errors import ConfigError, check
from .job import Floats, Job, save_weights


@contextlib.contextmanager
def beginning_with(job: Job, weights: Mapping[str, Floats], cluster: str | None, task: str | None,
                   to_save: str) -> Iterator[Job]:
    """The job: as it is if it has checkpoint.init_from; otherwise with one that holds these weights, as long as this lasts.
    ConfigError: it has none, and its servers are a cluster's, which see no folder of this process. to_save: the call that
    makes a folder for them.
    """
    if job.get("checkpoint.init_from"):
        yield job
        return
    in_cluster = ctypes.c_int()
    check(library.in_cluster(*(None if text is None else os.fsencode(text) for text in (cluster, task)),
                             ctypes.byref(in_cluster)))
    if in_cluster.value:
        raise ConfigError(
            "checkpoint.init_from is missing: the servers of a cluster need the model's initial values. Write them once "
            f"with {to_save}, and give the job {{\"checkpoint\": {{\"init_from\": \"initial\"}}}} or `weir up` "
            "--init_from=initial")
    with tempfile.TemporaryDirectory(prefix="weir-initial-") as folder:
        save_weights(folder, weights)
        yield job.with_override("checkpoint.init_from=" + json.dumps(folder))
