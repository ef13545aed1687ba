"""What a program logs beside its loss: numbers by name, and scores with their labels."""
from __future__ import annotations

import ctypes
import math
from typing import Any, Mapping

import numpy as np

from . import _library
from ._library import library
from .errors import ConfigError, check


def number_of(value: Any, wanted: str) -> float:
    """The value, a number or an array of one, as a number. ConfigError: it is neither; `wanted` says what should be."""
    shape = getattr(value, "shape", ())
    try:
        if not isinstance(value, (str, bytes)) and math.prod(shape) == 1:
            return float(value)
    except (TypeError, ValueError):
        pass
    kind = type(value).__name__ + (f" of shape {tuple(shape)}" if shape else "")
    raise ConfigError(f"{wanted}; got {kind}")


def log(handle: int, values: Mapping[str, Any], reduce: str, weight: float | None) -> None:
    """As Client.log()."""
    if reduce not in ("mean", "last"):
        raise ConfigError(f'log: reduce must be "mean" or "last", got {reduce!r}')
    metrics = (_library.Metric * len(values))()
    for metric, (name, value) in zip(metrics, values.items()):
        metric.name, metric.value = str(name).encode(), number_of(value, f'the metric "{name}" must be one number')
    heavy = 0.0 if weight is None else number_of(weight, "log: weight must be one number")
    if weight is not None and heavy == 0:
        raise ConfigError("log: weight must be above 0, and finite; got 0")
    check(library.log(handle, metrics, len(values), reduce == "last", heavy))


def log_auc(handle: int, name: str, scores: Any, labels: Any) -> None:
    """As Client.log_auc()."""
    arrays = []
    for what, given in (("scores", scores), ("labels", labels)):
        try:
            arrays.append(np.ascontiguousarray(given, dtype=np.float32).ravel())
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f'the metric "{name}": {what} must be an array of numbers: {error}') from None
    if arrays[0].size != arrays[1].size:
        raise ConfigError(f'the metric "{name}": there are {arrays[0].size} scores, and {arrays[1].size} labels')
    pointers = (array.ctypes.data_as(ctypes.c_void_p) for array in arrays)
    check(library.log_scores(handle, name.encode(), *pointers, arrays[0].size))
