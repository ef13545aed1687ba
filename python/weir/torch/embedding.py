"""Modules whose weights are rows of a job's embedding tables: where these come from, and where their gradients go."""
from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, Mapping

import numpy as np
import torch
import torch.nn.functional as F

from ..client import Client
from ..errors import ConfigError, Error
from ..exchange import Weights
from ..job import Floats
from ..steps import Step
from ..tables import Keys, Rows, RowSet, Tables
from .weights import ModelWeights

#: Keys by table: int64, of any shape.
KeysOfTables = Mapping[str, torch.Tensor]

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
        """As of torch.nn.Module, for print()."""
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
        """As of torch.nn.Module, for print()."""
        return f"{self.table!r}, mode={self.mode!r}"


class Embedding(TableModule):
    """Rows of a table of the job, as torch.nn.Embedding gives those of its weight. table: as of EmbeddingBag."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The row of each key: float32, of the shape of input with dim behind. input: keys, int64 of any shape."""
        rows, places = self._look_up(input)
        return F.embedding(places, rows)


class TableRows:
    """Gives the embedding modules of a model their rows: within a batch from the step, whose gradients it then has; within a
    snapshot from there; and after the loop those that were kept. Not thread-safe, as the model."""

    def __init__(self, model: torch.nn.Module, tables: Tables):
        self._modules = [module for module in model.modules() if isinstance(module, TableModule)]
        self._tables = tables
        for module in self._modules:
            tables.dim(module.table)  # checks it
        # Where rows come from outside a batch.
        self._elsewhere: Callable[[str, Keys], Floats] | None = None
        self._step: Step | None = None
        # What forward has read for the batch.
        self._leaves: list[tuple[str, Keys, torch.Tensor]] = []

    def bind(self) -> None:
        """From now on the modules read their rows here."""
        for module in self._modules:
            module._read = self._read

    # ---- a batch

    def begin(self, step: Step) -> None:
        self._step = step
        self._leaves.clear()

    def end(self) -> None:
        self._step = None
        self._leaves.clear()

    def zero_grad(self) -> None:
        for *_, leaf in self._leaves:
            leaf.grad = None

    def gradients(self) -> Rows:
        """What backward has made of the batch's rows; a key has a gradient for each forward that read it."""
        found: dict[str, list[tuple[Keys, Floats]]] = {}
        for table, keys, leaf in self._leaves:
            if leaf.grad is not None:
                found.setdefault(table, []).append((keys, leaf.grad.contiguous().cpu().numpy()))
        return {table: (np.concatenate([keys for keys, _ in parts]), np.concatenate([values for _, values in parts]))
                if len(parts) > 1 else parts[0] for table, parts in found.items()}

    # ---- other sources

    @contextlib.contextmanager
    def snapshot(self, client: Client, weights: ModelWeights, keys: KeysOfTables | None, as_member: Callable[[Callable[[], Any]], Any],
                 memory: Floats | None = None) -> Iterator[Weights]:
        """As ModelWeights.snapshot(). Within `with` rows come from there, too, and their gradients go nowhere: those of `keys`, of the
        same version, or without `keys` the newest consistent ones. as_member: makes a call to the servers, and joins again where the
        membership was lost."""
        kept = None if keys is None else KeptRows(keys, self._tables)
        with contextlib.ExitStack() as stack:
            new = as_member(lambda: stack.enter_context(weights.snapshot(client, memory, None if kept is None else kept.rows)))
            stack.enter_context(self.elsewhere(client, kept, as_member))
            yield new

    @contextlib.contextmanager
    def elsewhere(self, client: Client, kept: "KeptRows | None", as_member: Callable[[Callable[[], Any]], Any]) -> Iterator[None]:
        """Within `with` rows are the kept ones, or without such the newest consistent ones."""

        def newest(table: str, keys: Keys) -> Floats:
            values = np.empty((len(keys), self._tables.dim(table)), dtype=np.float32)
            if len(keys) > 0:
                as_member(lambda: client.snapshot(None, {table: (keys, values)}).result())
            return values

        before, self._elsewhere = self._elsewhere, newest if kept is None else kept.read
        try:
            yield
        finally:
            self._elsewhere = before

    def keep(self, kept: "KeptRows") -> None:
        """From now on rows outside a batch are these."""
        self._elsewhere = kept.read

    def _read(self, table: str, unique: torch.Tensor) -> torch.Tensor:
        keys = unique.cpu().numpy()
        if self._elsewhere is not None:
            found: torch.Tensor = torch.from_numpy(self._elsewhere(table, keys)).to(unique.device)
            return found
        step = self._step
        if step is None:
            raise Error(f"table {table}: a model's rows are on the servers. They are there for each batch of loader(), within "
                        "opt.snapshot(), and after the loop if loader(final_keys=...) names their keys")
        rows: torch.Tensor = torch.from_numpy(step.rows(table, keys)).to(unique.device)
        if torch.is_grad_enabled() and len(keys) > 0:
            rows.requires_grad_()
            rows.register_hook(lambda _: self._check(step))  # type: ignore[no-untyped-call]
            self._leaves.append((table, keys, rows))
        return rows

    def _check(self, step: Step) -> None:
        if self._step is not step:
            raise Error("backward() came after the batch whose rows it is about, so that their gradients cannot count any more; "
                        "call backward() and step() before the next batch")


class KeptRows(RowSet):
    """Rows of certain keys, of one version of the weights."""

    def __init__(self, keys: KeysOfTables, tables: Tables):
        if not isinstance(keys, Mapping):
            raise ConfigError(f"keys of tables must be a mapping, table -> tensor of int64, got {type(keys).__name__}")
        super().__init__(as_arrays(keys), tables)

    def read(self, table: str, keys: Keys) -> Floats:
        rows, found = self.find(table, keys)
        if not found.all():
            raise Error(f"table {table}: key {keys[~found][0]} was not named when these weights were read; name all keys that "
                        "the model looks up: within snapshot(keys=...), and for those after the loop in loader(final_keys=...)")
        return rows


def as_arrays(keys: KeysOfTables) -> dict[str, Keys]:
    """The keys as weir.Client takes them."""
    for table, of in keys.items():
        check_keys(table, of)
    return {table: of.detach().reshape(-1).cpu().numpy() for table, of in keys.items()}
