"""A job's config from a program's own words: torch's optimizer and scheduler, and keywords."""
from __future__ import annotations

import inspect
import json
import os
import pathlib
from typing import Any, Dict, Iterable, Mapping

import torch
from torch.optim import lr_scheduler

from ..errors import ConfigError
from ..fingerprints import in_cluster
from ..job import Job
from .weights import PlainModel

# The servers' rules by torch's classes: the options of torch that they have, and where the config has them. SGD's momentum
# and each rule's lr and weight_decay come beside these.
_RULES: dict[type, tuple[str, dict[str, tuple[str, ...]]]] = {
    torch.optim.SGD: ("sgd", {"momentum": ("momentum",), "nesterov": ()}),
    torch.optim.Adam: ("adam", {"betas": ("beta1", "beta2"), "eps": ("epsilon",), "amsgrad": ("amsgrad",)}),
    torch.optim.AdamW: ("adamw", {"betas": ("beta1", "beta2"), "eps": ("epsilon",), "amsgrad": ("amsgrad",)}),
    torch.optim.Adagrad: ("adagrad", {"eps": ("epsilon",)}),
    torch.optim.RMSprop: ("rmsprop", {"alpha": ("decay",), "eps": ("epsilon",)}),
}
NAMES = ", ".join(sorted(kind.__name__ for kind in _RULES))

# They say how torch computes, and not what.
_OF_TORCH = ("foreach", "fused", "capturable")
_OF_GROUPS = ("lr", "weight_decay")

_HINTS = {
    "maximize": "give backward() the negative of what is to grow",
    "momentum": "the servers have momentum with SGD alone",
    "decoupled_weight_decay": "torch.optim.AdamW has it",
}
_ALLOWED = ("allowed are StepLR, MultiStepLR, ExponentialLR, CosineAnnealingLR, PolynomialLR, LinearLR(start_factor=1) and OneCycleLR; a warm-up "
            "over N steps, LinearLR(start_factor=1/N, total_iters=N-1); and SequentialLR of that warm-up and one of the others but OneCycleLR, with "
            "milestones=[N]")


class JobFields(Dict[str, Any]):
    """The fields of a job's config, as job() makes them: a dict, which weir.torch.Optimizer takes in place of a file."""

    def __init__(self, fields: Mapping[str, Any], parameters: list[torch.Tensor], frozen: bool):
        super().__init__(fields)
        self._parameters, self._frozen = parameters, frozen

    def json(self) -> str:
        """The config as the text of a file, for `weir up`, `ps_server` and `weir config check`."""
        return json.dumps(self, indent=2) + "\n"

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the file at this path, whole or not at all; one that is there is replaced. ConfigError: this process is a task of a cluster, whose
        servers have read their file already."""
        if in_cluster(None):
            raise ConfigError(f"{os.fspath(path)} is not written, since this process is a task of a cluster (TF_CONFIG), whose servers have read "
                              "their config already; write the file before the cluster starts, by running the program alone")
        part = pathlib.Path(f"{os.fspath(path)}.part-{os.getpid()}")
        try:
            part.write_text(self.json(), encoding="utf-8")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def check(self, trained: Mapping[str, torch.Tensor]) -> None:
        """ConfigError: the parameters `trained`, by name, are not those of the optimizer that the job's rule is from."""
        known = set(map(id, self._parameters))
        strange = [] if self._frozen else [name for name, parameter in trained.items() if id(parameter) not in known]
        if strange:
            raise ConfigError(f"{strange[0]} requires a gradient, but it is in no parameter group of the optimizer that weir.torch.job() was "
                              "given; make that of this model's parameters, or give job(..., model=model), so that it keeps its values")
        missing = known - set(map(id, trained.values()))
        for parameter in self._parameters:
            if parameter.requires_grad and id(parameter) in missing:
                raise ConfigError(f"the optimizer that weir.torch.job() was given has a parameter of shape {tuple(parameter.shape)} that is none "
                                  "of this model's; make both of the same model, after it was copied")


def job(optimizer: torch.optim.Optimizer, *, batch_size: int, epochs: float | None = None, examples: int | None = None,
        steps: int | None = None, model: torch.nn.Module | None = None, scheduler: Any = None, scheduler_steps: int | None = None,
        mode: str = "sync", staleness: int | None = None, seed: int | None = None, local_steps: int | None = None,
        **more: Any) -> JobFields:
    """A job's config from torch's own optimizer and scheduler, of which it has the settings. Neither is used afterwards.

        job = weir.torch.job(torch.optim.AdamW(model.parameters(), lr=1e-3), batch_size=64, epochs=10)
        opt = weir.torch.Optimizer(model, job, train_set)

    optimizer: torch's SGD, Adam, AdamW, Adagrad or RMSprop, before its first step.
    batch_size: examples of one pushed gradient (in sync: of one part of a step); with local_steps of each step in between.
    epochs, examples, steps: the job's length, in passes over the training set, in examples, or in steps (in bounded and async
        batches of each worker); one of them is given.
    model: whose parameters the optimizer has; needed where parameter groups differ in lr or weight_decay, which then become
        optimizer.groups with the parameters' names. Parameters that are in no group keep their values.
    scheduler: StepLR, MultiStepLR, ExponentialLR, CosineAnnealingLR, PolynomialLR, LinearLR, OneCycleLR, or SequentialLR of a LinearLR as
        the servers' warm-up and another. Beyond T_max the rate stays at eta_min, where torch's would rise again.
    scheduler_steps: with scheduler, the steps of the job from one scheduler.step() to the next.
    mode, staleness: "sync", "bounded" with its staleness, or "async" (docs/concepts.md).
    seed: of the order of the examples and of each batch's random numbers; default 1.
    local_steps: the steps that a worker takes by itself for each push, with Optimizer(inner=...); `optimizer` is the outer rule then.
    more: other parts of the config, {"field": value}, as in its JSON: consistency={"parts": 4}, checkpoint={"directory": "runs"}.

    ConfigError: the servers do not have what the optimizer, a group or the scheduler has; a field is wrong; or it is given twice.
    """
    length = {name: value for name, value in (("epochs", epochs), ("examples", examples), ("steps", steps)) if value is not None}
    if len(length) != 1:
        raise ConfigError("give the job's length as one of epochs, examples and steps; got " +
                          (" and ".join(f"{name}={value!r}" for name, value in length.items()) or "none of them"))
    rule = rule_of(optimizer, model)
    if scheduler is not None:
        rule["schedule"] = schedule_of(scheduler, optimizer, scheduler_steps)
    elif scheduler_steps is not None:
        raise ConfigError(f"scheduler_steps={scheduler_steps!r} is given without a scheduler; give both or neither")
    else:
        for group in optimizer.param_groups:
            if float(group["lr"]) != initial_rate(group):
                raise ConfigError(f"the optimizer has a scheduler, which has changed the rate from {initial_rate(group):g} to "
                                  f"{float(group['lr']):g}; give job(..., scheduler=scheduler, scheduler_steps=...), or an optimizer without one")
    fields: dict[str, Any] = {"data": {"batch_size": batch_size}, "consistency": {"mode": mode}, "optimizer": rule,
                              "train": length}
    if staleness is not None:
        fields["consistency"]["staleness"] = staleness
    if seed is not None:
        fields["seed"] = seed
    if local_steps is not None:
        fields["local"] = {"steps": local_steps}
    _merge(fields, more, "")
    Job(fields)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return JobFields(fields, parameters, frozen=model is not None)


def _merge(fields: dict[str, Any], more: Mapping[str, Any], path: str) -> None:
    for name, value in more.items():
        own = fields.get(name)
        if isinstance(own, dict) and isinstance(value, Mapping):
            _merge(own, value, f"{path}{name}.")
        elif name in fields:
            raise ConfigError(f"{path}{name} is given as {value!r}, and weir.torch.job() makes it {own!r} from its other arguments; give it once")
        else:
            fields[name] = dict(value) if isinstance(value, Mapping) else value


# ---- the rule


def rule_of(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> dict[str, Any]:
    """`optimizer` of a job's config, without its schedule: the same rule. ConfigError: the servers do not have it.

    model: whose parameters these are, for their names, where not all have the same settings. A parameter of it that is in no
        group keeps its values, as in torch.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(f"optimizer must be one of torch.optim's, such as torch.optim.AdamW(model.parameters()); got "
                          f"{type(optimizer).__name__}")
    if type(optimizer) not in _RULES:
        raise ConfigError(f"optimizer is {type(optimizer).__name__}, whose rule the servers do not have; allowed are {NAMES}, and no "
                          "classes derived from them")
    kind, fields = _RULES[type(optimizer)]
    groups = [group for group in optimizer.param_groups if group["params"]]
    if not groups:
        raise ConfigError(f"{_name(optimizer)} has no parameters; give it those of the model")
    _check_groups(optimizer, groups, fields)
    _check_new(optimizer)
    rule: dict[str, Any] = {"type": kind}
    for option, names in fields.items():
        value = groups[0][option]
        if isinstance(value, bool):
            rule.update((name, True) for name in names if value)
        else:
            rule.update(zip(names, map(float, value if isinstance(value, tuple) else (value,))))
    if kind == "sgd":
        if groups[0]["momentum"] == 0:
            del rule["momentum"]
        else:
            rule["type"] = "nesterov" if groups[0]["nesterov"] else "momentum"
    # Coupled and decoupled are the same where the rule has no state.
    decay = "weight_decay" if rule["type"] in ("sgd", "adamw") else "l2"
    # The one of most parameters needs no names.
    base = max((group for group in groups if initial_rate(group) > 0), key=lambda group: len(group["params"]), default=groups[0])
    rule["learning_rate"] = initial_rate(base)
    if base["weight_decay"] != 0:
        rule[decay] = float(base["weight_decay"])
    entries = _entries(groups, base, decay, model)
    if entries:
        rule["groups"] = entries
    return rule


def initial_rate(group: Mapping[str, Any]) -> float:
    """The rate of a group, before any scheduler; of OneCycleLR the highest."""
    return float(group.get("max_lr", group.get("initial_lr", group["lr"])))


def _name(optimizer: torch.optim.Optimizer) -> str:
    return f"torch.optim.{type(optimizer).__name__}"


def _check_groups(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]], fields: Iterable[str]) -> None:
    """ConfigError: a group has an option that the servers do not have, or one of the whole rule that another group has otherwise."""
    signature = inspect.signature(type(optimizer).__init__).parameters
    for option in optimizer.defaults:
        if option in _OF_TORCH or option in _OF_GROUPS or option not in signature:
            continue
        for i, group in enumerate(groups):
            value, first = group[option], groups[0][option]
            if option in fields:
                if value != first:
                    raise ConfigError(f"{_name(optimizer)} has {option}={value!r} in one of its parameter groups (number {i}), and {first!r} in "
                                      "the first; groups may differ in lr and weight_decay alone")
                continue
            allowed = signature[option].default
            if option == "dampening" and group["momentum"] == 0 or value == allowed:
                continue
            raise ConfigError(f"{_name(optimizer)} has {option}={value!r}, which the servers' rule does not have; allowed is "
                              f"{option}={allowed!r}" + (f": {_HINTS[option]}" if option in _HINTS else ""))


def _check_new(optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        if float(state.get("step", 1 if any(value is not None for value in state.values()) else 0)) > 0:
            raise ConfigError(f"{_name(optimizer)} has state of steps that it has made, which a job cannot begin with; make the job from a new "
                              "optimizer. The weights go on where the model has them")


def _entries(groups: list[dict[str, Any]], base: Mapping[str, Any], decay: str, model: torch.nn.Module | None) -> list[dict[str, Any]]:
    """`optimizer.groups`: one entry, with the exact name, for each parameter whose settings are not those of `base`. decay: what
    weight_decay is there."""
    settings: dict[int, dict[str, Any]] = {}
    for group in groups:
        own: dict[str, Any] = {}
        if initial_rate(group) != initial_rate(base):
            own["learning_rate_factor"] = initial_rate(group) / initial_rate(base)
        if group["weight_decay"] != base["weight_decay"]:
            own[decay] = float(group["weight_decay"])
        settings.update((id(parameter), own) for parameter in group["params"])
    if model is None:
        if any(settings.values()):
            raise ConfigError("the parameter groups differ in lr or weight_decay, and a job has their parameters by the model's names; give "
                              "weir.torch.job(..., model=model)")
        return []
    names = {id(parameter): name for name, parameter in PlainModel(model).named_parameters() if parameter.requires_grad}
    for group in groups:
        for parameter in group["params"]:
            if parameter.requires_grad and id(parameter) not in names:
                raise ConfigError(f"the optimizer has a parameter of shape {tuple(parameter.shape)} that is none of the model's; give the model "
                                  "whose parameters it trains")
    entries = [{"match": name, **settings.get(of, {"frozen": True})} for of, name in names.items() if settings.get(of, True)]
    for entry in entries:
        if "*" in entry["match"] or "?" in entry["match"]:
            raise ConfigError(f"the parameter {entry['match']!r} has settings of its own, but optimizer.groups of a job takes * and ? as globs, "
                              "so that no entry can name it alone; give its module a name without them")
    return entries


# ---- the schedule


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
    if kind is not lr_scheduler.OneCycleLR and any("max_lr" in group for group in optimizer.param_groups):
        raise ConfigError(f"scheduler is {kind.__name__}, and the optimizer has OneCycleLR, too, which is allowed alone")
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
    if type(scheduler) is not lr_scheduler.LinearLR or scheduler.start_factor == 1 and scheduler.end_factor != 1:
        return {}
    _check_each_step(scheduler, steps)
    start, end, iterations = scheduler.start_factor, scheduler.end_factor, scheduler.total_iters
    if end != 1 or abs(start * (iterations + 1) - 1) > 1e-9:
        raise ConfigError(f"LinearLR has start_factor={start:g}, end_factor={end:g} and total_iters={iterations}; allowed is a rise from "
                          f"start_factor=1/N to end_factor=1 with total_iters=N-1, such as start_factor=1/{iterations + 1} here, or a fall from "
                          "start_factor=1")
    return {"warmup_steps": iterations + 1}


def _decay(scheduler: Any, optimizer: torch.optim.Optimizer, steps: int) -> dict[str, Any]:
    kind = type(scheduler)
    if kind is lr_scheduler.StepLR:
        return {"type": "step", "step_size": scheduler.step_size * steps, "gamma": scheduler.gamma}
    if kind is lr_scheduler.MultiStepLR:
        return {"type": "multi_step", "milestones": [at * steps for at in sorted(scheduler.milestones.elements())], "gamma": scheduler.gamma}
    if kind is lr_scheduler.ExponentialLR:
        if steps == 1:
            return {"type": "exponential", "gamma": scheduler.gamma}
        return {"type": "step", "step_size": steps, "gamma": scheduler.gamma}
    if kind in (lr_scheduler.LinearLR, lr_scheduler.PolynomialLR, lr_scheduler.CosineAnnealingLR, lr_scheduler.OneCycleLR):
        _check_each_step(scheduler, steps)
    if kind is lr_scheduler.LinearLR:
        if scheduler.start_factor != 1:
            raise ConfigError(f"SequentialLR has LinearLR with start_factor={scheduler.start_factor:g} after the warm-up; allowed there is "
                              "start_factor=1")
        return {"type": "linear", "total_steps": scheduler.total_iters, "final_factor": scheduler.end_factor}
    if kind is lr_scheduler.PolynomialLR:
        return {"type": "polynomial", "total_steps": scheduler.total_iters, "power": scheduler.power}
    if kind is lr_scheduler.OneCycleLR:
        return _one_cycle(scheduler, optimizer)
    if kind is lr_scheduler.CosineAnnealingLR:
        rates = {initial_rate(group) for group in optimizer.param_groups if group["params"]}
        if scheduler.eta_min != 0 and len(rates) > 1:
            raise ConfigError(f"CosineAnnealingLR has eta_min={scheduler.eta_min:g} for parameter groups of several rates, but the servers lower "
                              "all by one factor; allowed is eta_min=0, or one rate")
        lowest = scheduler.eta_min / max(rates) if scheduler.eta_min != 0 else 0
        return {"type": "cosine", "total_steps": scheduler.T_max, "final_factor": lowest}
    raise ConfigError(f"scheduler is {kind.__name__}, which the servers do not have; {_ALLOWED}")


def _one_cycle(scheduler: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    anneal = getattr(scheduler, "_anneal_func_type", None) or scheduler.anneal_func.__name__  # the former from PyTorch 2.1 on
    for option, wrong in (("cycle_momentum=True", scheduler.cycle_momentum), ("three_phase=True", len(scheduler._schedule_phases) != 2),
                          ("anneal_strategy='linear'", "cos" not in anneal)):
        if wrong:
            raise ConfigError(f"OneCycleLR has {option}, which the servers do not have; allowed are cycle_momentum=False, three_phase=False and "
                              "anneal_strategy='cos'")
    group, total = optimizer.param_groups[0], scheduler.total_steps
    return {"type": "one_cycle", "total_steps": total, "peak_share": (scheduler._schedule_phases[0]["end_step"] + 1) / total,
            "start_factor": group["initial_lr"] / group["max_lr"], "final_factor": group["min_lr"] / group["max_lr"]}


def _check_each_step(scheduler: Any, steps: int) -> None:
    if steps != 1:
        raise ConfigError(f"{type(scheduler).__name__} with scheduler_steps={steps} has one rate for {steps} steps at a time, but the servers' "
                          "changes with each step; give it its length in steps, and scheduler_steps=1")
