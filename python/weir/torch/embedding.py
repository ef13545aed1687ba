"""Modules whose weights are rows of a job's embedding tables."""
from __future__ import annotations

from typing import Any, Callable

import torch
import torch.nn.functional as F

from ..errors import ConfigError, Error

# The rows of keys, which are unique, in the table: float32 [n, dim], on the device of the keys.
ReadRows = Callable[[str, torch.Tensor], torch.Tensor]


def check_keys(table: str, keys: Any) -> None:
    """ConfigError: the keys are not as a table's must be."""
    if not isinstance(keys, torch.Tensor) or keys.dtype != torch.int64:
        seen = keys.dtype if isinstance(keys, torch.Tensor) else type(keys).__name__
        raise ConfigError(f"table {table}: keys must be a tensor of int64, got {seen}; convert them with .long()")


class TableModule(torch.nn.Module):
    """A module that reads rows of an embedding table. It has no parameters: weir.torch.Optimizer and Reader say where rows
    come from, and the first takes their gradients. A copy, and what torch.save() has saved, are without rows until then."""

    def __init__(self, table: str):
        super().__init__()
        if not isinstance(table, str):
            raise ConfigError(f"{type(self).__name__}: table must be the name of one of the job's tables, got {table!r}; the table's "
                              "dim there is the width, and there is no number of rows")
        self.table = table
        self._read: ReadRows | None = None

    def _look_up(self, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of the different keys, and for each key the position of its row."""
        check_keys(self.table, keys)
        if self._read is None:
            raise Error(f"{type(self).__name__}({self.table!r}) has no rows here: they are on a job's servers. Give the "
                        "model to weir.torch.Optimizer and call it within the loop over loader(), or to weir.torch.Reader "
                        "and call it within snapshot()")
        unique, places = torch.unique(keys, return_inverse=True)
        return self._read(self.table, unique), places

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_read": None}

    def extra_repr(self) -> str:
        return repr(self.table)


class EmbeddingBag(TableModule):
    """Sums or means of rows, as torch.nn.EmbeddingBag makes them, over a table of the job: without a size of the vocabulary,
    since each int64 is a key.

    table: its name in the job's config, which also has its dim, its optimizer and the initial values of rows.
    mode: "sum" or "mean".
    include_last_offset: as of torch.nn.EmbeddingBag.
    """

    def __init__(self, table: str, mode: str = "sum", *, include_last_offset: bool = False):
        super().__init__(table)
        if mode not in ("sum", "mean"):
            raise ConfigError(f"EmbeddingBag({table!r}): mode must be \"sum\" or \"mean\", got {mode!r}")
        self.mode, self.include_last_offset = mode, include_last_offset

    def forward(self, input: torch.Tensor, offsets: torch.Tensor | None = None,
                per_sample_weights: torch.Tensor | None = None) -> torch.Tensor:
        """The bags' rows, float32 [B, dim].

        input: keys, int64: [B, L], a bag in each row; or [n] with offsets.
        offsets: int64 [B], where in input each bag begins; the last one goes to the end.
        per_sample_weights: float32 of the shape of input, by which rows are multiplied; with mode "sum".
        """
        rows, places = self._look_up(input)
        return F.embedding_bag(places, rows, offsets, mode=self.mode, per_sample_weights=per_sample_weights,
                               include_last_offset=self.include_last_offset)

    def extra_repr(self) -> str:
        return f"{self.table!r}, mode={self.mode!r}"


class Embedding(TableModule):
    """Rows of a table of the job, as torch.nn.Embedding gives those of its weight. table: as of EmbeddingBag."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The row of each key: float32, of the shape of input with dim behind. input: keys, int64 of any shape."""
        rows, places = self._look_up(input)
        return F.embedding(places, rows)
