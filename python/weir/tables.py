"""Rows of a job's embedding tables, as calls take and give them."""
from __future__ import annotations

from typing import Any, Dict, Mapping, Tuple, Union

import numpy as np
import numpy.typing as npt

from . import _library
from .errors import ConfigError
from .job import Floats, Job, SupportsDLPack, check_floats, one_as_numpy

#: Keys of rows: int64 or uint64, of one dimension. An int64 key names the same row as the uint64 of its bits.
Keys = Union[npt.NDArray[np.int64], npt.NDArray[np.uint64]]

#: Rows by table: (keys, values), n keys in any order and float32 values of shape [n, dim]. A key may come several times.
Rows = Mapping[str, Tuple[SupportsDLPack, SupportsDLPack]]


class Tables(Dict[str, int]):
    """The embedding tables of a job's config: name -> dim, the values of a row."""

    def __init__(self, job: Job):
        super().__init__({str(table["name"]): int(table["dim"]) for table in job.config.get("tables", [])})
        self._indices = {name: i for i, name in enumerate(self)}

    def dim(self, name: str) -> int:
        """The values of a row. ConfigError: the job has no such table."""
        if name not in self:
            known = f"it has {', '.join(self)}" if self else "it has none; its config lists them in `tables`"
            raise ConfigError(f"the job has no table {name!r}: {known}")
        return self[name]

    def place(self, rows: Rows | None, what: str, writeable: bool) -> "PlacedRows":
        """Where the rows lie. ConfigError: a table is unknown, or keys or values are not as Rows says."""
        if not rows:
            return _NO_ROWS
        placed = PlacedRows(len(rows))
        for entry, (name, given) in zip(placed.array, rows.items()):
            dim, place = self.dim(name), f"{what}: table {name}"
            keys = _checked_keys(one_as_numpy(given[0], f"{place}: keys", "int64 or uint64"), place)
            values = one_as_numpy(given[1], f"{place}: values")
            check_floats(values, f"{place}: values", (len(keys), dim), writeable, " (keys, dim)")
            entry.table, entry.keys, entry.n, entry.values = self._indices[name], keys.ctypes.data, len(keys), values.ctypes.data
            placed.by_name[name] = keys, values
        return placed


class PlacedRows:
    """Rows as the library takes them; their memory lives as long as this."""

    def __init__(self, tables: int):
        self.by_name: dict[str, tuple[npt.NDArray[np.uint64], Floats]] = {}
        self.array = (_library.Rows * tables)()

    def __len__(self) -> int:
        return len(self.by_name)

    def summed(self) -> dict[str, tuple[npt.NDArray[np.uint64], Floats]]:
        """Each key once, with the sum of its values in their order; copies."""
        sums: dict[str, tuple[npt.NDArray[np.uint64], Floats]] = {}
        for name, (keys, values) in self.by_name.items():
            unique, places = np.unique(keys, return_inverse=True)
            total = np.zeros((len(unique), values.shape[1]), dtype=np.float32)
            np.add.at(total, places, values)
            sums[name] = unique, total
        return sums


_NO_ROWS = PlacedRows(0)


class RowSet:
    """Memory for the rows of certain keys, each of a table once."""

    def __init__(self, keys: Mapping[str, Keys], tables: Tables):
        self._tables = tables
        unique = {table: np.unique(_checked_keys(of, f"table {table}")) for table, of in keys.items()}
        #: For calls that read rows.
        self.rows = {table: (of, np.empty((len(of), tables.dim(table)), dtype=np.float32)) for table, of in unique.items()}

    def find(self, table: str, keys: Keys) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Which of the keys are there, and the rows of those."""
        if table not in self.rows:
            return np.empty((0, self._tables.dim(table)), dtype=np.float32), np.zeros(len(keys), dtype=np.bool_)
        keys = _checked_keys(keys, f"table {table}")
        known, values = self.rows[table]
        places = np.searchsorted(known, keys)
        found = places < len(known)
        found[found] = known[places[found]] == keys[found]
        return values[places[found]], found


def _checked_keys(keys: Any, what: str) -> npt.NDArray[np.uint64]:
    if not isinstance(keys, np.ndarray) or keys.dtype not in (np.int64, np.uint64) or keys.ndim != 1:
        seen = f"{keys.dtype} of shape {keys.shape}" if isinstance(keys, np.ndarray) else type(keys).__name__
        raise ConfigError(f"{what}: keys must be an array of int64 or uint64 with one dimension, got {seen}; convert them "
                          "with astype(np.int64) and ravel()")
    return np.ascontiguousarray(keys).view(np.uint64)
