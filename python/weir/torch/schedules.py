"""The schedule of one of torch's schedulers, in the words of a job's config."""
from __future__ import annotations

from typing import Any

import torch
from torch.optim import lr_scheduler

from ..errors import ConfigError
from .rules import initial_rate

_ALLOWED = ("allowed are StepLR, ExponentialLR and CosineAnnealingLR; a warm-up over N steps, LinearLR(start_factor=1/N, total_iters=N-1); and "
            "SequentialLR of that warm-up and one of the others, with milestones=[N]")


def schedule_of(scheduler: Any, optimizer: torch.optim.Optimizer, steps: int | None) -> dict[str, Any]:
    """`optimizer.schedule` of a job's config: the same rate at each step. ConfigError: the servers do not have it.

    steps: from one scheduler.step() to the next.
    """
    kind = type(scheduler)
    if getattr(scheduler, "optimizer", None) is not optimizer:
        raise ConfigError(f"scheduler must be a scheduler of torch.optim.lr_scheduler, of the optimizer that is given; got {kind.__name__}")
    if scheduler.last_epoch != 0:
        raise ConfigError(f"{kind.__name__}.step() was called already (last_epoch is {scheduler.last_epoch}), and a job begins at its first "
                          "step; make the job from a new scheduler")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ConfigError(f"scheduler_steps must be how many steps of the optimizer there are from one scheduler.step() to the next, since the "
                          f"servers count steps: 1, or the steps of an epoch for a scheduler of epochs; got {steps!r}")
    if kind is not lr_scheduler.SequentialLR:
        return _warm_up(scheduler, steps) or _decay(scheduler, optimizer, steps)
    parts, milestones = scheduler._schedulers, scheduler._milestones
    warm_up = _warm_up(parts[0], steps)
    if len(parts) != 2 or not warm_up:
        raise ConfigError(f"scheduler is SequentialLR of {', '.join(type(part).__name__ for part in parts)}, which the servers do not have; "
                          f"{_ALLOWED}")
    if milestones != [warm_up["warmup_steps"]]:
        raise ConfigError(f"SequentialLR has milestones={milestones}, but the servers' schedule follows on the warm-up at once; allowed is "
                          f"milestones=[{warm_up['warmup_steps']}], total_iters of its LinearLR plus 1")
    return {**_decay(parts[1], optimizer, steps), **warm_up}


def _warm_up(scheduler: Any, steps: int) -> dict[str, Any]:
    """The servers' rate is that of the constructor times (t + 1) / warmup_steps at step t. {}: this is no warm-up."""
    if type(scheduler) is not lr_scheduler.LinearLR:
        return {}
    _check_each_step(scheduler, steps)
    start, end, iterations = scheduler.start_factor, scheduler.end_factor, scheduler.total_iters
    if end != 1 or abs(start * (iterations + 1) - 1) > 1e-9:
        raise ConfigError(f"LinearLR has start_factor={start:g}, end_factor={end:g} and total_iters={iterations}; allowed is a rise from "
                          f"start_factor=1/N to end_factor=1 with total_iters=N-1, such as start_factor=1/{iterations + 1} here")
    return {"warmup_steps": iterations + 1}


def _decay(scheduler: Any, optimizer: torch.optim.Optimizer, steps: int) -> dict[str, Any]:
    if type(scheduler) is lr_scheduler.StepLR:
        return {"type": "step", "step_size": scheduler.step_size * steps, "gamma": scheduler.gamma}
    if type(scheduler) is lr_scheduler.ExponentialLR:
        return {"type": "step", "step_size": steps, "gamma": scheduler.gamma}
    if type(scheduler) is lr_scheduler.CosineAnnealingLR:
        _check_each_step(scheduler, steps)
        rates = {initial_rate(group) for group in optimizer.param_groups if group["params"]}
        if scheduler.eta_min != 0 and len(rates) > 1:
            raise ConfigError(f"CosineAnnealingLR has eta_min={scheduler.eta_min:g} for parameter groups of several rates, but the servers lower "
                              "all by one factor; allowed is eta_min=0, or one rate")
        lowest = scheduler.eta_min / max(rates) if scheduler.eta_min != 0 else 0
        return {"type": "cosine", "total_steps": scheduler.T_max, "final_factor": lowest}
    raise ConfigError(f"scheduler is {type(scheduler).__name__}, which the servers do not have; {_ALLOWED}")


def _check_each_step(scheduler: Any, steps: int) -> None:
    if steps != 1:
        raise ConfigError(f"{type(scheduler).__name__} with scheduler_steps={steps} has one rate for {steps} steps at a time, but the servers' "
                          "changes with each step; give it its length in steps, and scheduler_steps=1")
