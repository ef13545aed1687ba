"""The rule of one of torch's optimizers, and its parameter groups, in the words of a job's config."""
from __future__ import annotations

import inspect
from typing import Any, Iterable, Mapping

import torch

from ..errors import ConfigError
from .plain_model import PlainModel

# The servers' rules by torch's classes: the options of torch that they have, and where the config has them. SGD's momentum
# and each rule's lr and weight_decay come beside these.
_RULES: dict[type, tuple[str, dict[str, tuple[str, ...]]]] = {
    torch.optim.SGD: ("sgd", {"momentum": ("momentum",), "nesterov": ()}),
    torch.optim.Adam: ("adam", {"betas": ("beta1", "beta2"), "eps": ("epsilon",)}),
    torch.optim.AdamW: ("adamw", {"betas": ("beta1", "beta2"), "eps": ("epsilon",)}),
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
_COUPLED = ("the servers' weight decay does not go through the rule's state (decoupled, as AdamW's); allowed with AdamW and with SGD "
            "without momentum, where both are the same, else 0")


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
        rule.update(zip(names, map(float, value if isinstance(value, tuple) else (value,))))
    if kind == "sgd":
        if groups[0]["momentum"] == 0:
            del rule["momentum"]
        else:
            rule["type"] = "nesterov" if groups[0]["nesterov"] else "momentum"
    if rule["type"] not in ("sgd", "adamw"):
        for group in groups:
            if group["weight_decay"] != 0:
                raise ConfigError(f"{_name(optimizer)} has weight_decay={group['weight_decay']!r}: {_COUPLED}")
    # The one of most parameters needs no names.
    base = max((group for group in groups if initial_rate(group) > 0), key=lambda group: len(group["params"]), default=groups[0])
    rule["learning_rate"] = initial_rate(base)
    if base["weight_decay"] != 0:
        rule["weight_decay"] = float(base["weight_decay"])
    entries = _entries(groups, base, model)
    if entries:
        rule["groups"] = entries
    return rule


def initial_rate(group: Mapping[str, Any]) -> float:
    """The rate of a group, before any scheduler."""
    return float(group.get("initial_lr", group["lr"]))


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Those of all groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


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


def _entries(groups: list[dict[str, Any]], base: Mapping[str, Any], model: torch.nn.Module | None) -> list[dict[str, Any]]:
    """`optimizer.groups`: one entry, with the exact name, for each parameter whose settings are not those of `base`."""
    settings: dict[int, dict[str, Any]] = {}
    for group in groups:
        own: dict[str, Any] = {}
        if initial_rate(group) != initial_rate(base):
            own["learning_rate_factor"] = initial_rate(group) / initial_rate(base)
        if group["weight_decay"] != base["weight_decay"]:
            own["weight_decay"] = float(group["weight_decay"])
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
