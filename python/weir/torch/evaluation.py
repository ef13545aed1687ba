"""Functions that evaluate a model, for jobs that ask for it."""
from __future__ import annotations

import contextlib
from typing import Any, Callable, Mapping

import torch

from ..evaluations import Evaluate
from ..job import FlatTensors
from .weights import ModelWeights

#: Returns what weir.Client's evaluate returns, of the model.
EvaluateModel = Callable[[Any], Mapping[str, Any]]


def of_values(function: EvaluateModel | None, model: torch.nn.Module, weights: ModelWeights,
              rows: Callable[[], contextlib.AbstractContextManager[None]]) -> Evaluate | None:
    """The function as weir.Client takes it. It gets the model, in eval mode, which makes no gradients and is as it was afterwards.
    rows: within `with rows()` the model has the rows of tables."""
    if function is None or not callable(function):
        return function

    def evaluate(values: FlatTensors) -> Mapping[str, Any]:
        modes = [(module, module.training) for module in model.modules()]
        try:
            with weights.showing(values), rows(), torch.no_grad():
                return function(model.eval())
        finally:
            for module, training in modes:
                module.training = training

    return evaluate
