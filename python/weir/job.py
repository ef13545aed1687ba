"""A job's config, the model's tensors, and the order of the training examples."""
from __future__ import annotations

import ctypes
import json
import os
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ._library import Tensor as _Tensor
from ._library import library
from .errors import ConfigError, check

#: An array of float32.
Floats = npt.NDArray[np.float32]

_INITIALIZERS = {"constant": 0, "normal": 1, "uniform": 2}
_UPLOADED = 3


@dataclass(frozen=True)
class Tensor:
    """A tensor of the model: float32, row-major.

    shape: its dimensions; () is a scalar.
    initializer, value: how the servers make the initial values from the job's seed. "constant": each is `value`;
        "normal": standard deviation `value` around 0; "uniform": in [-value, value). A job with checkpoint.init_from
        takes its initial values from there instead.
    """

    shape: tuple[int, ...]
    initializer: str = "constant"
    value: float = 0.0


class Job:
    """A job's config.

    job: a path, or a mapping with the fields of the JSON.
    overrides: "field.path=value", as with --set. Those of `weir up` (WEIR_SET in the environment, a JSON list) are
        added.

    ConfigError names each wrong field with its place.
    """

    def __init__(self, job: str | os.PathLike[str] | Mapping[str, Any], overrides: Sequence[str] = ()):
        sets = [*overrides, *json.loads(os.environ.get("WEIR_SET", "[]"))]
        array = (ctypes.c_char_p * len(sets))(*(s.encode() for s in sets))
        path = None if isinstance(job, Mapping) else os.fsencode(job)
        text = json.dumps(job).encode() if isinstance(job, Mapping) else None
        handle = ctypes.c_void_p()
        check(library.load_job(path, text, array, len(sets), ctypes.byref(handle)))
        self._handle: ctypes.c_void_p | None = handle
        #: The config with its defaults, as nested dicts.
        self.config: dict[str, Any] = json.loads(library.job_json(handle))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            library.free_job(self._handle)
            self._handle = None

    def get(self, path: str, default: Any = None) -> Any:
        """The field at a path: get("train.clip_norm")."""
        found: Any = self.config
        for name in path.split("."):
            if not isinstance(found, dict) or name not in found:
                return default
            found = found[name]
        return found


class Model:
    """The model's tensors in their order, as the library takes them. Tensors that are given as arrays have these initial
    values, which a worker uploads."""

    def __init__(self, tensors: Mapping[str, Tensor | Sequence[int] | Floats]):
        #: The initial values; empty: the servers make them.
        self.initial = {name: np.asarray(t, dtype=np.float32, order="C") for name, t in tensors.items()
                        if isinstance(t, (np.ndarray, np.generic))}
        others = [name for name in tensors if name not in self.initial]
        if self.initial and others:
            raise ConfigError(f"{others[0]} is given without values, and {next(iter(self.initial))} as an array; give "
                              "all tensors as arrays or none")
        shapes = {name: self.initial[name].shape if name in self.initial else t for name, t in tensors.items()}
        self.tensors = {name: t if isinstance(t, Tensor) else Tensor(tuple(t)) for name, t in shapes.items()}
        self.names = list(self.tensors)
        self.shapes = [tuple(int(n) for n in t.shape) for t in self.tensors.values()]
        self.sizes = [int(np.prod(shape, dtype=np.int64)) for shape in self.shapes]
        self.elements = sum(self.sizes)
        self._keep: list[Any] = []
        self.array = (_Tensor * len(self.names))()
        for entry, (name, tensor), shape in zip(self.array, self.tensors.items(), self.shapes):
            if tensor.initializer not in _INITIALIZERS:
                raise ConfigError(f"{name}: the initializer must be one of {', '.join(_INITIALIZERS)}, "
                                  f"got {tensor.initializer!r}")
            dimensions = (ctypes.c_int64 * len(shape))(*shape)
            self._keep.append(dimensions)
            entry.name, entry.shape, entry.rank = name.encode(), dimensions, len(shape)
            entry.initializer = _UPLOADED if self.initial else _INITIALIZERS[tensor.initializer]
            entry.value = tensor.value

    def split(self, flat: Floats) -> dict[str, Floats]:
        """Views of flat memory that holds the tensors end to end."""
        views, begin = {}, 0
        for name, shape, size in zip(self.names, self.shapes, self.sizes):
            views[name] = flat[begin:begin + size].reshape(shape)
            begin += size
        return views

    def pointers(self, arrays: Mapping[str, Floats], what: str, writeable: bool) -> ctypes.Array[ctypes.c_void_p]:
        """Where the tensors lie. ConfigError: a tensor is missing, unknown, or not as the model has it."""
        pointers = (ctypes.c_void_p * len(self.names))()
        for i, (name, shape) in enumerate(zip(self.names, self.shapes)):
            array = arrays.get(name)
            if not isinstance(array, np.ndarray):
                raise ConfigError(f"{what}: {name} must be a NumPy array, got {type(array).__name__}")
            flags = array.flags
            if array.dtype != np.float32 or array.shape != shape or not flags.c_contiguous or (
                    writeable and not flags.writeable):
                raise ConfigError(
                    f"{what}: {name} must be float32 of shape {shape}, C-contiguous{' and writeable' * writeable}; got "
                    f"{array.dtype} of shape {array.shape}{'' if flags.c_contiguous else ', not C-contiguous'}"
                    f"{'' if flags.writeable or not writeable else ', read-only'}")
            pointers[i] = array.ctypes.data
        unknown = [name for name in arrays if name not in self.tensors]
        if unknown:
            raise ConfigError(f"{what}: the model has no tensor {unknown[0]!r}; it has {', '.join(self.names[:10])}")
        return pointers


def save_weights(directory: str | os.PathLike[str], weights: Mapping[str, Floats]) -> None:
    """Writes initial weights, for a job's checkpoint.init_from. The folder is made; ConfigError or Error: it holds
    weights already, which stay.

    weights: the model's tensors by name, float32, in the model's order.
    """
    arrays = {name: np.asarray(array, dtype=np.float32, order="C") for name, array in weights.items()}
    model = Model({name: Tensor(array.shape) for name, array in arrays.items()})
    check(library.save_weights(os.fsencode(directory), model.array, len(model.names),
                               model.pointers(arrays, "weights", writeable=False)))


class ExampleOrder:
    """The order in which a job of this seed sees its training examples, each once an epoch."""

    def __init__(self, examples: int, seed: int):
        handle = ctypes.c_void_p()
        check(library.new_order(examples, seed, ctypes.byref(handle)))
        self._handle: ctypes.c_void_p | None = handle

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            library.free_order(self._handle)
            self._handle = None

    def __call__(self, first: int, n: int) -> npt.NDArray[np.int32]:
        """The examples' indices (int32) at the positions [first, first + n) of the job's endless stream."""
        indices = np.empty(n, dtype=np.int32)
        library.fill_order(self._handle, first, n, indices.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)))
        return indices
