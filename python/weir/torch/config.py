"""A job's config from a program's own words: torch's optimizer and scheduler, and keywords."""
from __future__ import annotations

import json
import os
import pathlib
from typing import Any, Dict, Mapping

import torch

from ..errors import ConfigError
from ..fingerprints import in_cluster
from ..job import Job
from .rules import initial_rate, parameters_of, rule_of
from .schedules import schedule_of


class JobFields(Dict[str, Any]):
    """The fields of a job's config, as job() makes them: a dict, which weir.torch.Optimizer takes in place of a file."""

    def __init__(self, fields: Mapping[str, Any], parameters: list[torch.Tensor], frozen: bool):
        super().__init__(fields)
        self._parameters, self._frozen = parameters, frozen

    def json(self) -> str:
        """The config as the text of a file, for `weir up`, `ps_server` and `weir config check`."""
        return json.dumps(self, indent=2) + "\n"

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the file, whole or not at all; one that is there is replaced. ConfigError: this process is a task of a cluster, whose
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
        """ConfigError: a job would train other parameters than the optimizer that its rule is from."""
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
        model: torch.nn.Module | None = None, scheduler: Any = None, scheduler_steps: int | None = None, mode: str = "sync",
        staleness: int | None = None, seed: int | None = None, **more: Any) -> JobFields:
    """A job's config from torch's own optimizer and scheduler, of which it has the settings. Neither is used afterwards.

        job = weir.torch.job(torch.optim.AdamW(model.parameters(), lr=1e-3), batch_size=64, epochs=10)
        opt = weir.torch.Optimizer(model, job, train_set)

    optimizer: torch's SGD, Adam, AdamW, Adagrad or RMSprop, before its first step.
    batch_size: examples of one pushed gradient (in sync: of one part of a step).
    epochs, examples: the job's length, in passes over the training set or in examples; one of them is given.
    model: whose parameters the optimizer has; needed where parameter groups differ in lr or weight_decay, which then become
        optimizer.groups with the parameters' names. Parameters that are in no group keep their values.
    scheduler: StepLR, ExponentialLR, CosineAnnealingLR, a LinearLR as the servers' warm-up, or SequentialLR of both. Beyond
        T_max the rate stays at eta_min, where torch's would rise again.
    scheduler_steps: with scheduler, the steps of the job from one scheduler.step() to the next.
    mode, staleness: "sync", "bounded" with its staleness, or "async" (docs/concepts.md).
    seed: of the order of the examples and of each batch's random numbers; default 1.
    more: other parts of the config, {"field": value}, as in its JSON: consistency={"parts": 4}, checkpoint={"directory": "runs"}.

    ConfigError: the servers do not have what the optimizer, a group or the scheduler has; a field is wrong; or it is given twice.
    """
    if (epochs is None) == (examples is None):
        raise ConfigError(f"give the job's length either as epochs or as examples; got epochs={epochs!r} and examples={examples!r}")
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
                              "train": {"examples": examples} if epochs is None else {"epochs": epochs}}
    if staleness is not None:
        fields["consistency"]["staleness"] = staleness
    if seed is not None:
        fields["seed"] = seed
    _merge(fields, more, "")
    Job(fields)
    return JobFields(fields, parameters_of(optimizer), frozen=model is not None)


def _merge(fields: dict[str, Any], more: Mapping[str, Any], path: str) -> None:
    for name, value in more.items():
        own = fields.get(name)
        if isinstance(own, dict) and isinstance(value, Mapping):
            _merge(own, value, f"{path}{name}.")
        elif name in fields:
            raise ConfigError(f"{path}{name} is given as {value!r}, and weir.torch.job() makes it {own!r} from its other arguments; give it once")
        else:
            fields[name] = dict(value) if isinstance(value, Mapping) else value
