"""Local steps (Stich 2019; DiLoCo, Douillard et al. 2023): the steps that a worker takes by itself, with the program's own optimizer,
between two exchanges with the servers."""
from __future__ import annotations

import copy
from typing import Any, Callable, Iterator

import numpy as np
import torch

from ..errors import ConfigError
from ..exchange import Work
from ..job import Job
from ..steps import Step
from .device import Indexed, difference_of
from .weights import ModelWeights


class LocalSteps:
    """The steps of a round, which begins with the servers' weights in the model and ends with one push: these weights minus the result,
    and the buffers of the job as they are then.

    inner: the program's optimizer, of all trained parameters. Its param_groups are the program's. A round begins with the state that it
    had when the loop began, and so follows from weights and batches alone. With local.keep_state of the job it begins with the state
    that this worker's round before has left, whatever became of its push; in sync that of the part's round, if this worker did it in
    the step before. A membership that has begun again has nothing kept.
    """

    def __init__(self, inner: torch.optim.Optimizer, weights: ModelWeights, job: Job):
        self._inner, self._weights = inner, weights
        self._per_round = int(job.get("local.steps", 1))
        if not isinstance(inner, torch.optim.Optimizer):
            raise ConfigError(f"inner must be one of torch's optimizers, such as torch.optim.AdamW(model.parameters()); got {type(inner).__name__}")
        if job.get("tables"):
            raise ConfigError("inner cannot be given to a job with embedding tables, whose rows it does not step; leave out inner and local.steps")
        self._is_sync, self._keeps = job.get("consistency.mode") == "sync", bool(job.get("local.keep_state", False))
        clips = job.get("train.clip", "push") != "mean"
        self._clip_norm = float(job.get("train.clip_norm", 0)) if clips else 0.0
        self._clip_value = float(job.get("train.clip_value", 0))
        self.check()
        # Of the loop's beginning; most optimizers have none before their first step.
        self._initial = {parameter: copy.deepcopy(values) for parameter, values in inner.state.items()}
        # Of the membership's rounds: by part, the clock and what is kept.
        self._membership: object = None
        self._kept: dict[int, tuple[int, dict[Any, Any]]] = {}
        self._begin_round(0)

    def check(self) -> None:
        """ConfigError: `inner` has other parameters than those that the job trains."""
        own = {id(p): p for group in self._inner.param_groups for p in group["params"] if p.requires_grad}
        for name, parameter in self._weights.parameters.items():
            if own.pop(id(parameter), None) is None:
                raise ConfigError(f"{name} requires a gradient, but it is in no parameter group of inner, which would not step it; give inner all "
                                  "parameters that are trained, perhaps with lr=0, or freeze the others before the optimizer is made")
        for parameter in own.values():
            raise ConfigError(f"inner has a parameter of shape {tuple(parameter.shape)} that is none of this model's; make it of the same model, "
                              "after it was copied")

    # ---- a round

    def begin(self, step: Step) -> None:
        """The model has the servers' weights for this step."""
        if self._is_sync and not self._keeps and any("initial_lr" in group for group in self._inner.param_groups):
            raise ConfigError("inner has a learning rate scheduler, which counts the steps of this worker alone, so that in sync the weights would "
                              "depend on which worker computes what; set inner's rates from opt.local_step, which counts the job's, or set "
                              "local.keep_state of the job")
        self._begin_round(step.work.clock)
        state = self._take(step)
        self._inner.state.clear()
        self._inner.state.update({p: copy.deepcopy(values) for p, values in self._initial.items()} if state is None else state)

    def _take(self, step: Step) -> dict[Any, Any] | None:
        """The state that was kept for this step's part."""
        if step.membership is not self._membership:
            self._membership, self._kept = step.membership, {}
        if self._is_sync:  # other workers have done these parts since
            self._kept = {part: kept for part, kept in self._kept.items() if kept[0] + 1 >= step.work.clock}
        return self._kept.pop(step.work.part, (0, None))[1]

    def _begin_round(self, clock: int) -> None:
        self._clock, self._taken = clock, 0
        self._loss, self._of_loss = 0.0, 0
        self._weight: float | None = None

    @property
    def count(self) -> int:
        """The steps from the job's beginning to the batch at hand, in a chain of rounds: the clock's, and those of the round."""
        return self._clock * self._per_round + self._taken

    def take(self, closure: Callable[[], Any] | None) -> Any:
        """One step of the optimizer. Returns the closure's result."""
        if closure is None:
            self._clip()
            self._inner.step()
            return None

        def clipped() -> Any:
            result = closure()
            self._clip()
            return result

        return self._inner.step(clipped)

    def took(self, work: Work, loss: float | None, weight: float | None) -> None:
        """The step for this batch is done. ConfigError: batches of a round have a weight, and others have none."""
        if self._taken > 0 and (weight is None) != (self._weight is None):
            raise ConfigError("step(weight=) was given for some batches of a round and not for others; a round's weight is the sum over its "
                              "batches, so give it for all or none")
        if weight is not None:
            self._weight = (self._weight or 0.0) + weight
        if loss is not None:
            self._loss += loss * work.examples
            self._of_loss += work.examples
        self._taken += 1

    def ends(self, work: Work, step: Step) -> bool:
        """Whether this batch is the last one of the round."""
        return work.first_example + work.examples == step.work.first_example + step.work.examples

    def finish(self, step: Step) -> None:
        """Puts into step.gradient what the round has taken away from the weights."""
        self._weights.place.finish(step, self._differences(step))
        # What values that are not finite have made of the state would stay in it.
        if self._keeps and np.isfinite(step.gradient.flat).all():
            self._kept[step.work.part] = (step.work.clock, dict(self._inner.state))

    def push(self, step: Step) -> None:
        """Sends it."""
        step.push_difference(loss=self._loss / self._of_loss if self._of_loss else None, weight=self._weight)

    def _differences(self, step: Step) -> Iterator[Indexed]:
        weights = self._weights
        base = weights.place.loaded(step)
        for index, parameter in enumerate(weights.parameters.values()):
            yield index, difference_of(base[index], parameter)
        yield from enumerate(weights.buffers.values(), len(weights.parameters))

    def _clip(self) -> None:
        """As weir.Step.push(), where the job clips gradients of batches."""
        parameters = list(self._weights.parameters.values())
        if self._clip_value > 0:
            torch.nn.utils.clip_grad.clip_grad_value_(parameters, self._clip_value)
        if self._clip_norm > 0:
            torch.nn.utils.clip_grad.clip_grad_norm_(parameters, self._clip_norm)
