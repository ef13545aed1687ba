"""Arrays of other packages as NumPy arrays of the same memory."""
from __future__ import annotations

from typing import Any, Mapping, Protocol

import numpy as np

from .errors import ConfigError


class SupportsDLPack(Protocol):
    """An array of NumPy, or of another package that exports it (https://dmlc.github.io/dlpack)."""

    def __dlpack__(self) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, Any]: ...


#: Tensors by name.
Arrays = Mapping[str, SupportsDLPack]


def as_numpy(arrays: Mapping[str, Any], what: str, dtype: str = "float32") -> dict[str, Any]:
    """The arrays without any copy; a NumPy scalar becomes a read-only array, and what is no array stays. ConfigError: NumPy cannot
    use one where it lies; it says that arrays of this dtype are wanted."""
    return {name: _as_numpy(array, f"{what}: {name}", dtype) for name, array in arrays.items()}


def _as_numpy(array: Any, what: str, dtype: str) -> Any:
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
