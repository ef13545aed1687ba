"""A job's config, the model's tensors, the order of the training examples, and the seeds of batches."""
from __future__ import annotations

import ctypes
import functools
import json
import os
import random
import threading
from dataclasses import dataclass, field
from typing import Any, Collection, Iterator, Mapping, Protocol, Sequence

import numpy as np
import numpy.typing as npt

from ._library import Owner, library
from ._library import Tensor as _Tensor
from .errors import ConfigError, check, made

#: An array of float32.
Floats = npt.NDArray[np.float32]


class SupportsDLPack(Protocol):
    """An array of NumPy, or of another package that exports it (https://dmlc.github.io/dlpack)."""

    def __dlpack__(self) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, Any]: ...


#: Tensors by name.
Arrays = Mapping[str, SupportsDLPack]

_INITIALIZERS = {"constant": 0, "normal": 1, "uniform": 2}
_UPLOADED = 3
_INITIAL = "initial values"


@dataclass(frozen=True)
class Tensor:
    """A tensor of the model: float32, row-major.

    shape: its dimensions; () is a scalar.
    initializer, value: how the servers make the initial values from the job's seed. "constant": each is `value`;
        "normal": standard deviation `value` around 0; "uniform": in [-value, value). A job with checkpoint.init_from
        takes its initial values from there instead.
    buffer: running statistics. A push holds their new values instead of a gradient. In sync the step gives them the mean
        over its parts; otherwise they are those of the newest push.
    values: the initial values instead, float32 of this shape, which a worker uploads (Client).
    aliases: other names that the model has for this tensor (tied weights). `weir export` writes it under each of its names.
    """

    shape: tuple[int, ...]
    initializer: str = "constant"
    value: float = 0.0
    buffer: bool = False
    values: SupportsDLPack | None = field(default=None, repr=False, compare=False)
    aliases: tuple[str, ...] = ()

    @staticmethod
    def of(given: Tensor | Sequence[int] | Floats) -> Tensor:
        """A tensor that is given as such, as its shape, or as an array of its initial values."""
        if isinstance(given, Tensor):
            return given
        if isinstance(given, np.ndarray):
            return Tensor(given.shape, values=given)
        return Tensor(tuple(given))


class Job(Owner):
    """A job's config.

    job: a path, or a mapping with the fields of the JSON.
    overrides: "field.path=value", as with --set. Those of `weir up` (WEIR_SET in the environment, a JSON list) are
        added.

    ConfigError names each wrong field with its place.
    """

    _free = library.free_job

    def __init__(self, job: str | os.PathLike[str] | Mapping[str, Any], overrides: Sequence[str] = ()):
        if not isinstance(job, (str, os.PathLike, Mapping)):
            raise ConfigError(f"job must be the path of a job's config, or a mapping with its fields; got {type(job).__name__}")
        sets = [*overrides, *_sets_of_environment()]
        array = (ctypes.c_char_p * len(sets))(*(s.encode() for s in sets))
        path = None if isinstance(job, Mapping) else os.fsencode(job)
        try:
            text = json.dumps(job).encode() if isinstance(job, Mapping) else None
        except (TypeError, ValueError) as error:
            raise ConfigError(f"job must be a mapping with the fields of a job's config, as JSON has them: {error}") from error
        self._handle = made(library.load_job, path, text, array, len(sets))
        #: The config with its defaults, as nested dicts.
        self.config: dict[str, Any] = json.loads(library.job_json(self._handle))

    def get(self, path: str, default: Any = None) -> Any:
        """The field at a path, or `default` if the config has none: get("train.clip_norm")."""
        found: Any = self.config
        for name in path.split("."):
            if not isinstance(found, dict) or name not in found:
                return default
            found = found[name]
        return found


def _sets_of_environment() -> list[str]:
    text = os.environ.get("WEIR_SET", "[]")
    try:
        sets = json.loads(text)
    except ValueError:
        sets = None
    if not isinstance(sets, list) or not all(isinstance(s, str) for s in sets):
        raise ConfigError(f"the environment's WEIR_SET must be a list of \"field=value\" in JSON, as `weir up` and `weir run` make it; got "
                          f"{text!r}. Unset it, or give the settings as overrides")
    return sets


class FlatTensors(Mapping[str, Floats]):
    """A model's tensors in one memory, end to end, which can be written: name -> array. `flat` is all of it."""

    def __init__(self, model: Model, flat: Floats):
        self.model, self.flat = model, flat
        ends = np.cumsum(model.sizes)
        self._views = {name: flat[end - size:end].reshape(shape)
                       for name, shape, size, end in zip(model.names, model.shapes, model.sizes, ends)}
        #: Where they lie, in the model's order.
        self.pointers = model.pointers(self._views, "memory", writeable=True)
        #: The arrays as another package has them, for whoever made that.
        self.converted: Any = None

    @functools.cached_property
    def read_only(self) -> Mapping[str, Floats]:
        """The same arrays, which cannot be written."""
        views = {name: view.view() for name, view in self._views.items()}
        for view in views.values():
            view.flags.writeable = False
        return views

    def __getitem__(self, name: str) -> Floats:
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)


class Model:
    """The model's tensors in their order, as the library takes them."""

    def __init__(self, tensors: Mapping[str, Tensor | Sequence[int] | SupportsDLPack]):
        self.tensors = {name: Tensor.of(t) for name, t in as_numpy(tensors, _INITIAL).items()}
        given = {name: t.values for name, t in self.tensors.items() if t.values is not None}
        #: The initial values, which a worker uploads; empty: the servers make them.
        self.initial = {name: np.asarray(values, dtype=np.float32, order="C")
                        for name, values in as_numpy(given, _INITIAL).items()}
        others = [name for name in tensors if name not in self.initial]
        if self.initial and others:
            raise ConfigError(f"{others[0]} is given without values, and {next(iter(self.initial))} with them; give "
                              "all tensors values or none")
        self.names = list(self.tensors)
        self.shapes = [tuple(int(n) for n in t.shape) for t in self.tensors.values()]
        self.sizes = [int(np.prod(shape, dtype=np.int64)) for shape in self.shapes]
        self.elements = sum(self.sizes)
        self.array = (_Tensor * len(self.names))()
        for entry, (name, tensor), shape in zip(self.array, self.tensors.items(), self.shapes):
            if tensor.initializer not in _INITIALIZERS:
                raise ConfigError(f"{name}: the initializer must be one of {', '.join(_INITIALIZERS)}, "
                                  f"got {tensor.initializer!r}")
            # ctypes keeps what an entry points to.
            entry.name, entry.shape, entry.rank = name.encode(), (ctypes.c_int64 * len(shape))(*shape), len(shape)
            entry.initializer = _UPLOADED if self.initial else _INITIALIZERS[tensor.initializer]
            entry.value, entry.buffer = tensor.value, tensor.buffer
            entry.n_aliases = len(tensor.aliases)
            entry.aliases = (ctypes.c_char_p * entry.n_aliases)(*(alias.encode() for alias in tensor.aliases))

    def split(self, flat: Floats) -> FlatTensors:
        """The tensors in flat memory, which holds them end to end."""
        return FlatTensors(self, flat)

    def place(self, given: Arrays, what: str, writeable: bool) -> tuple[Any, ctypes.Array[ctypes.c_void_p]]:
        """What keeps the tensors' memory, and where they lie. An empty dict that is to be written gets arrays. ConfigError: a tensor
        is missing, unknown, not as the model has it, or not in memory that can be used where it is."""
        if isinstance(given, FlatTensors) and given.model is self:
            return given, given.pointers
        if not isinstance(given, Mapping):
            raise ConfigError(f"{what}: must be arrays by name, got {type(given).__name__}")
        if writeable and isinstance(given, dict) and not given:
            given.update({name: np.empty(shape, dtype=np.float32) for name, shape in zip(self.names, self.shapes)})
        arrays = as_numpy(given, what)
        return arrays, self.pointers(arrays, what, writeable)

    def pointers(self, arrays: Mapping[str, Floats], what: str, writeable: bool) -> ctypes.Array[ctypes.c_void_p]:
        """Where arrays lie that are the tensors. ConfigError: a tensor is missing, unknown, or not as the model has it."""
        pointers = (ctypes.c_void_p * len(self.names))()
        for i, (name, shape) in enumerate(zip(self.names, self.shapes)):
            array = arrays.get(name)
            check_floats(array, f"{what}: {name}", shape, writeable)
            pointers[i] = array.ctypes.data  # type: ignore[union-attr]
        unknown = [name for name in arrays if name not in self.tensors]
        if unknown:
            raise ConfigError(f"{what}: the model has no tensor {unknown[0]!r}; it has {', '.join(self.names[:10])}")
        return pointers


def save_weights(directory: str | os.PathLike[str], weights: Mapping[str, Floats], buffers: Collection[str] = ()) -> None:
    """Writes initial weights, for a job's checkpoint.init_from. The directory is made; ConfigError or Error: it holds
    weights already, which stay.

    weights: the model's tensors by name, float32, in the model's order. buffers: which of them are running statistics
        (Tensor.buffer).
    """
    if not isinstance(weights, Mapping):
        raise ConfigError(f"weights must be arrays by name, got {type(weights).__name__}; the order is weir.save_weights(directory, "
                          "weights)")
    arrays = {name: np.asarray(array, dtype=np.float32, order="C") for name, array in weights.items()}
    model = Model({name: Tensor(array.shape, buffer=name in buffers) for name, array in arrays.items()})
    check(library.save_weights(os.fsencode(directory), model.array, len(model.names),
                               model.pointers(arrays, "weights", writeable=False)))


class ExampleOrder(Owner):
    """The order in which a job of this seed sees its training examples, each once an epoch. Thread-safe."""

    _free = library.free_order

    def __init__(self, examples: int, seed: int):
        self._handle = made(library.new_order, examples, seed)
        self._filling = threading.Lock()

    def __call__(self, first: int, n: int) -> npt.NDArray[np.int32]:
        """The examples' indices (int32) at the positions [first, first + n) of the job's endless stream."""
        indices = np.empty(n, dtype=np.int32)
        with self._filling:
            library.fill_order(self._handle, first, n, indices.ctypes.data)
        return indices


# ---- arrays of other packages


def as_numpy(arrays: Mapping[str, Any], what: str) -> dict[str, Any]:
    """one_as_numpy() of each."""
    return {name: one_as_numpy(array, f"{what}: {name}") for name, array in arrays.items()}


def check_floats(array: Any, what: str, shape: tuple[int, ...], writeable: bool, axes: str = "") -> None:
    """ConfigError: this is no array of float32 with this shape that can be used where it lies. axes: what the shape counts."""
    if not isinstance(array, np.ndarray):
        raise ConfigError(f"{what} must be an array, got {type(array).__name__}")
    flags = array.flags
    if array.dtype != np.float32 or array.shape != shape or not flags.c_contiguous or (writeable and not flags.writeable):
        raise ConfigError(f"{what} must be float32 of shape {shape}{axes}, C-contiguous{' and writeable' * writeable}; got "
                          f"{array.dtype} of shape {array.shape}{'' if flags.c_contiguous else ', not C-contiguous'}"
                          f"{'' if flags.writeable or not writeable else ', read-only'}")


def one_as_numpy(array: Any, what: str, dtype: str = "float32") -> Any:
    """The array without any copy; a NumPy scalar becomes a read-only array, and what is no array stays. ConfigError: NumPy cannot
    use it where it lies; it says that an array of this dtype is wanted."""
    if isinstance(array, np.generic):
        array = np.asarray(array)
        array.flags.writeable = False  # it is a copy
    if isinstance(array, np.ndarray) or not hasattr(array, "__dlpack__"):
        return array
    try:
        found = np.from_dlpack(array)
        if not found.flags.writeable:
            # NumPy takes this memory as read-only if it is not told about it; the package's own conversion knows.
            own = np.asarray(array)
            if own.__array_interface__["data"][0] == found.__array_interface__["data"][0] and own.strides == found.strides:
                return own
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"{what} must be {dtype} in the host's memory, which NumPy can use where it is; got a "
                          f"{type(array).__module__}.{type(array).__qualname__}: {error}") from error
    return found


# ---- random numbers, which follow from the job's seed: each batch has a seed of its own, whichever worker computes the batch

# Odd, so that a seed comes again only after 2^63 batches. The examples of a batch and what is computed from them have seeds of two
# sequences.
_OF_BATCHES, _OF_EXAMPLES = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03


def batch_seed(job_seed: int, batch: int) -> int:
    """The seed for computing a batch, in [0, 2^63)."""
    return (job_seed + _OF_BATCHES * (batch + 1)) % 2**63


def examples_seed(job_seed: int, batch: int) -> int:
    """The seed for making the examples of a batch, in [0, 2^63)."""
    return (job_seed + _OF_EXAMPLES * (batch + 1)) % 2**63


def seed_globals(seed: int) -> None:
    """Of NumPy's global generator and Python's `random`."""
    # An int of 32 bits is NumPy's fast way. The high bits differ most from batch to batch.
    np.random.seed(seed >> 31)
    random.seed(seed)
