"""JAX models on Weir: a pytree of float32 arrays is the model, and its gradient has the same structure.

    with weir.jax.Trainer("job.json", params, len(x)) as trainer:
        for step in trainer.steps():
            loss, gradient = jax.value_and_grad(mean_loss)(step.params, x[step.examples], y[step.examples])
            step.push(gradient, loss=loss)
    params = trainer.params
"""
from __future__ import annotations

import functools
import os
from typing import Any, Callable, Iterator, Mapping, Sequence

import jax
import numpy as np
import numpy.typing as npt

from .client import Client
from .errors import ConfigError
from .job import FlatTensors, Floats, Job
from .steps import Batch as _Batch
from .steps import Step as _Step
from .steps import run

__all__ = ["Batch", "Step", "Trainer", "flatten", "unflatten"]


def _name(path: Sequence[Any]) -> str:
    # The kinds of entries that JAX has differ in what they call their value.
    return ".".join(str(next(getattr(entry, a) for a in ("key", "idx", "name") if hasattr(entry, a))) for entry in path)


def _leaves(tree: Any) -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = _name(path)
        dtype = getattr(leaf, "dtype", type(leaf).__name__)
        if dtype != np.float32:
            raise ConfigError(f"{name or 'the tree'} must be a float32 array, got {dtype}; convert it with "
                              ".astype(\"float32\"), or keep it out of the tree if it is not trained")
        if name in leaves:
            raise ConfigError(f"two leaves of the tree have the name {name}; rename a key, so that the paths differ")
        leaves[name] = leaf
    return leaves


def flatten(tree: Any) -> dict[str, Floats]:
    """The tree's leaves as NumPy arrays, in the tree's order, by the names that the job has for them: the path with dots,
    such as "layers.0.bias" in {"layers": [{"bias": b}]}. Read-only, and without a copy, where JAX has a leaf in the
    host's memory.

    ConfigError: a leaf is no float32 array, or two have one name.
    """
    return {name: np.asarray(leaf, order="C") for name, leaf in _leaves(tree).items()}


def unflatten(like: Any, arrays: Mapping[str, Floats]) -> Any:
    """A tree of the structure of `like`, of JAX arrays on the default device: copies of these arrays, which have
    flatten()'s names. ConfigError: one is missing, unknown, or has a different shape from the leaf of `like`."""
    leaves = _leaves(like)
    for name in [*leaves, *arrays]:
        leaf, array = leaves.get(name), arrays.get(name)
        if leaf is None or array is None or leaf.shape != array.shape:
            expected, seen = ("nothing" if a is None else f"shape {a.shape}" for a in (leaf, array))
            raise ConfigError(f"{name}: the tree has {expected}, the arrays have {seen}")
    # JAX reads an array later, or keeps using its memory, so each copy is JAX's alone.
    copies = [np.array(arrays[name]) for name in leaves]
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(like), jax.device_put(copies))


def _key(seed: int) -> jax.Array:
    # Without jax_enable_x64 a key takes the low 32 bits of a number.
    return jax.random.fold_in(jax.random.PRNGKey(seed & 0x7FFFFFFF), seed >> 31)


class Batch:
    """A batch of a step that has several: local.steps of the job. examples, seed, work: as of Step."""

    def __init__(self, batch: _Batch):
        self.work, self.seed = batch.work, batch.seed
        self.examples: npt.NDArray[np.int32] = batch.examples

    @functools.cached_property
    def key(self) -> jax.Array:
        """As Step.key, of this batch."""
        return _key(self.seed)


class Step:
    """One piece of work.

    params: the tree of weights to compute with. examples: int32 indices of its examples, in [0, train_examples).
    work: what it is (weir.Work). seed: of the batch (weir.Step.seed).
    """

    def __init__(self, step: _Step, params: Any):
        self._step = step
        self.params = params
        self.work, self.seed = step.work, step.seed
        self.examples: npt.NDArray[np.int32] = step.examples

    @functools.cached_property
    def key(self) -> jax.Array:
        """A key for JAX's random numbers, of the batch's seed: it does not depend on which worker computes the batch, and no two
        batches have the same."""
        return _key(self.seed)

    @property
    def batches(self) -> Iterator[Batch]:
        """The batches of the step, of data.batch_size examples each, in their order (weir.Step.batches)."""
        return map(Batch, self._step.batches)

    def push(self, gradient: Any, *, loss: Any = None, weight: Any = None) -> None:
        """Sends the gradient: a tree like params, the mean over the examples. Waits for JAX to compute it, not for the
        servers. loss: the mean loss (a number or array), which `weir status` and the summary show. train.clip_value
        and clip_norm of the job apply. weight: in sync, the gradient's in the mean of its step (weir.Step.push())."""
        self._step.push(flatten(gradient), loss=loss, weight=weight)

    def push_result(self, params: Any, *, loss: Any = None, weight: Any = None) -> None:
        """Sends what the program's own steps over `batches` have made of the step's params: a tree like these. loss, weight: as of
        weir.Step.push_result()."""
        self._step.push_result(flatten(params), loss=loss, weight=weight)


class Trainer:
    """Trains a pytree as a worker of a job.

    job: the job's config, a path or a mapping. Its optimizer and schedule run on the servers.
    params: the model, a pytree of float32 arrays, of the same structure and order for every worker.
    train_examples: the size of the training set, the same for every worker.
    evaluate, test: as of weir.Client, of a tree like params.
    overrides and other options: as of weir.Client.

    Initial values: these params, unless the job has checkpoint.init_from or checkpoints to continue from. In a cluster they
    are those of one worker, which uploads them before the first step.

    Works within `with`; an exception there, or the end of the block before that of the job, leaves the job to others.
    """

    def __init__(self, job: str | os.PathLike[str] | Mapping[str, Any] | Job, params: Any, train_examples: int, *,
                 overrides: Sequence[str] = (), evaluate: Callable[[Any], Mapping[str, Any]] | None = None,
                 test: Callable[[Any], Mapping[str, Any]] | None = None, **options: Any):
        #: The tree: the initial values, and after the loop the trained ones.
        self.params = params
        #: This worker's membership (weir.Client).
        self.client = Client(job, flatten(params), train_examples, overrides=overrides, evaluate=self._of_arrays(evaluate),
                             test=self._of_arrays(test), **options)
        self._step: _Step | None = None

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            self.client.give_up(error or "its loop over steps() ended before the job was done; for a shorter job set train.epochs or "
                                "train.examples")
        finally:
            self.client.close()

    def steps(self) -> Iterator[Step]:
        """Yields each piece of work that this worker has to do, in every mode, until the job is done; call push() of each. As
        weir.Client.steps()."""
        final = self._memory()
        for step in run(self.client, final):
            self._step = step
            yield Step(step, unflatten(self.params, step.weights))
        self._step = None
        self.params = unflatten(self.params, final)

    def snapshot(self) -> Any:
        """The newest consistent weights of the job, as a tree; in sync those of one step. For evaluating while it
        trains. A worker whose membership was lost joins again, and sends nothing for its step."""
        arrays = self._memory()

        def read() -> None:
            self.client.snapshot(arrays).result()

        if self._step is None:
            read()
        else:
            self._step.as_member(read)
        return unflatten(self.params, arrays)

    def _of_arrays(self, function: Callable[[Any], Mapping[str, Any]] | None) -> Callable[[FlatTensors], Mapping[str, Any]] | None:
        """The function, of a tree, as weir.Client takes it."""
        if function is None or not callable(function):
            return function
        return lambda arrays: function(unflatten(self.params, arrays))

    def _memory(self) -> FlatTensors:
        return self.client.model.split(np.empty(self.client.model.elements, dtype=np.float32))
