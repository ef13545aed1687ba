"""What a program can know of a job before its loop: how many workers and batches it has, and which worker this process is. And
BatchNorm layers, which cannot train on one value per channel."""
from __future__ import annotations

import json
import math
import os
from typing import Any

import torch
import torch.utils.data

from ..errors import ConfigError, Error
from ..fingerprints import in_cluster
from ..job import Job


def is_stream(train_set: Any) -> bool:
    return isinstance(train_set, torch.utils.data.IterableDataset)


def has_shards(stream: Any) -> bool:
    """Whether a stream can be divided: its shard(num_shards=, index=), as that of Hugging Face `datasets`, returns a part of it."""
    return callable(getattr(stream, "shard", None))


def count_examples(train_set: Any, job: Job) -> int:
    """The examples of a pass over the training set. ConfigError: the job cannot train on it."""
    if not is_stream(train_set):
        if hasattr(train_set, "__len__") and hasattr(train_set, "__getitem__"):
            return len(train_set)
        raise ConfigError("train_set must be a map-style data set, with __len__ and __getitem__, since the job says which "
                          f"examples to compute; or an IterableDataset. Got {type(train_set).__name__}")
    if job.get("consistency.mode") == "sync" and not has_shards(train_set):
        raise ConfigError("train_set is an IterableDataset without shard(), but in sync each part of a step is made of certain examples, "
                          "so that any worker can compute it. Give it shard(num_shards, index), which returns a part of the stream "
                          "(docs/data.md), or use a map-style data set or another consistency.mode")
    sized: Any = train_set
    examples = len(sized) if hasattr(sized, "__len__") else job.get("train.examples")
    if examples is None:
        raise ConfigError("train_set is an IterableDataset without __len__, so that an epoch has no length; give the job's "
                          "length as train.examples instead of train.epochs")
    return int(examples)


class WholeJob:
    """examples: of the training set. cluster, task: as of weir.Client."""

    def __init__(self, job: Job, examples: int, cluster: str | None, task: str | None):
        self._job, self._examples = job, examples
        #: Whether this process is all of the job.
        self.alone = not in_cluster(cluster)
        self.is_sync: bool = job.get("consistency.mode") == "sync"
        #: The examples of a batch, but for the job's last one.
        self.batch = int(job.config["data"]["batch_size"])
        #: The batches of a push.
        self.local_steps = int(job.get("local.steps", 1))
        self.seed = int(job.config["seed"])
        # The examples of a push.
        self._round = self.batch * self.local_steps
        # What they say is for the library to read.
        self._environment = None if cluster is not None or task is not None else _read_environment()

    @property
    def rank(self) -> int:
        """This worker's, as it will be once it has joined. Error: TF_CONFIG does not say it."""
        if self.alone:
            return 0
        if self._environment is None:
            raise Error("the rank is known from the first batch on, since this process has its place in the cluster not from TF_CONFIG alone "
                        "(cluster=, task=); read it in the loop or after it")
        return self._environment[0]

    @property
    def workers(self) -> int:
        """How many the job is made for. Error: neither the config nor TF_CONFIG says it."""
        if self.alone:
            return 1
        workers = self._job.get("cluster.workers") or (self._environment and self._environment[1])
        if not workers:
            raise Error("the number of workers is not known here, since TF_CONFIG does not list them; set cluster.workers of the job")
        return int(workers)

    @property
    def may_go_on(self) -> bool:
        """Whether there may be a checkpoint of an earlier run."""
        return self._job.get("checkpoint.directory") is not None

    @property
    def batches(self) -> int:
        """Of the job, from its beginning, for all workers together."""
        return math.ceil(self._length() / self.batch)

    @property
    def steps(self) -> int:
        """Of the job in sync, from its beginning. ConfigError: another mode. Error: it is not known how many parts a step has."""
        if not self.is_sync:
            raise ConfigError(f"consistency.mode is {self._job.get('consistency.mode')!r}, where each batch is an update and the job has no steps; "
                              "opt.batches_total is the number of its batches, for all workers together")
        given = self._job.get("train.steps")
        return math.ceil(math.ceil(self._length() / self._round) / self.parts) if given is None else int(given)

    @property
    def likely_parts(self) -> int:
        """Of a step in sync, else 1. A guess where `parts` is not known: the job may go on from a checkpoint, or has workers that no config
        counts."""
        return int(self._job.get("consistency.parts") or self._job.get("cluster.workers") or 1) if self.is_sync else 1

    @property
    def parts(self) -> int:
        """Of a step in sync. Error: it is not known."""
        parts = self._job.get("consistency.parts")
        if parts is None and self.may_go_on:
            raise Error("the number of steps is not known before the loop, since the job may go on from a checkpoint of a job with other parts; "
                        "set consistency.parts of the job")
        return int(parts or self.workers)

    def _length(self) -> int:
        """In examples, as JobSize of the servers."""
        length = self._given_length()
        if not self._job.get("data.drop_last"):
            return length
        whole = self._round * (self.parts if self.is_sync else 1)
        return length // whole * whole

    def _given_length(self) -> int:
        """In examples, without data.drop_last."""
        steps, examples = self._job.get("train.steps"), self._job.get("train.examples")
        if steps is not None:
            return int(steps) * (self.parts if self.is_sync else self.workers) * self._round
        if examples is not None:
            return int(examples)
        return max(1, math.floor(float(self._job.get("train.epochs")) * self._examples + 0.5))

    def smallest_batch(self) -> tuple[int, str]:
        """The examples of the job's smallest batch, and which batch that is. Batches cross the ends of epochs, so that only the last one
        may be short."""
        batch = self.batch
        length = batch if self._job.get("train.steps") else self._given_length()
        left = length % batch
        if left == 0 or self._job.get("data.drop_last"):
            return batch, f"data.batch_size is {batch}; set at least 2"
        return left, (f"the job has {length} examples in batches of {batch} (data.batch_size), so that its last batch has {left}. Set "
                      "data.drop_last, which leaves out the job's end where a step (in bounded and async: a batch) is not full, "
                      "or another data.batch_size or train.examples")


def _read_environment() -> tuple[int, int | None] | None:
    """This worker's rank and the number of workers, if it is listed, by TF_CONFIG. None: it does not say the rank."""
    try:
        config = json.loads(os.environ.get("TF_CONFIG") or "{}")
        cluster: dict[str, Any] = config.get("cluster") or config.get("sparseCluster")
        task = config["task"]
        chiefs, workers = [*cluster.get("chief", []), *cluster.get("master", [])], cluster.get("worker", [])
        listed = None if isinstance(workers, dict) else len(chiefs) + len(workers)
        if task["type"] in ("chief", "master"):
            return 0, listed
        return (int(task["index"]) + (1 if chiefs else 0), listed) if task["type"] == "worker" else None
    except (AttributeError, KeyError, TypeError, ValueError):
        return None  # the library says what is wrong, when it opens the job


class SmallBatchCheck:
    """In the forwards of the first batch, of `examples` examples, raises ConfigError if a BatchNorm layer will get a single value per
    channel from the job's smallest batch. Until remove()."""

    def __init__(self, model: torch.nn.Module, whole: WholeJob, examples: int):
        smallest, self._why = whole.smallest_batch()
        self._examples = examples
        self._hooks = []
        if smallest == 1:
            self._hooks = [layer.register_forward_pre_hook(self._hook(name or type(layer).__name__))
                           for name, layer in model.named_modules() if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)]

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _hook(self, name: str) -> Any:
        def check(layer: Any, inputs: tuple[Any, ...]) -> None:
            x = inputs[0] if inputs else None
            if x is None or x.dim() < 2 or not (layer.training or layer.running_mean is None):
                return
            # In proportion, where the program cuts the batch, or makes several inputs of an example.
            if x.numel() // x.shape[1] <= self._examples:
                raise ConfigError(f"the BatchNorm layer {name} cannot train on a batch of one example, of which it gets one value "
                                  f"per channel: {self._why}")

        return check
