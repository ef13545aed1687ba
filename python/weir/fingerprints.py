"""What tells whether the workers of a job have the same training set and the same program: ps:0 compares it when they join."""
from __future__ import annotations

import hashlib
import os
import pathlib
import random
import sys
import types
from collections.abc import Mapping, Sequence, Set
from typing import Any, Callable, Iterator

import numpy as np

#: Examples that are read and compared, at most.
EXAMPLES = 8

# Names, as messages have them (JoinRequest.fingerprints).
_OF_EXAMPLES, _OF_SUBSET, _OF_PROGRAM = "the training set's examples", "the training set's subset", "the program"

# Limits of a walk through a data set, and of the depth of an example.
_OBJECTS, _ENTRIES, _DEPTH = 1000, 100, 8


def of_program(version: str | None, sync: bool) -> dict[str, str]:
    """The program's version. By default that of its main file, in sync alone: there any worker may compute any part, and must get
    the same bits. Nothing where there is no such file, as in a notebook."""
    if version is not None:
        return {_OF_PROGRAM: hashlib.sha256(version.encode()).hexdigest()[:16]}
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if not sync or path is None:
        return {}
    try:
        return {_OF_PROGRAM: hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()[:16]}
    except OSError:
        return {}


def of_subset(train_set: Any) -> dict[str, str]:
    """Which examples the set takes of another one: the indices of every torch.utils.data.Subset in it."""
    indices = [found.indices for found in _within(train_set) if hasattr(found, "indices") and hasattr(found, "dataset")]
    seen = _digest(indices)
    return {} if not indices or seen is None else {_OF_SUBSET: seen}


def in_cluster(cluster: str | None) -> bool:
    """Whether there may be other workers."""
    return cluster is not None or bool(os.environ.get("TF_CONFIG"))


def of_training_set(train_set: Any, indices: Sequence[int]) -> dict[str, str]:
    """Of a set that this process reads itself: these examples of it, and the subsets. The random numbers stay as they are."""
    return {**of_subset(train_set), **of_examples(*read_twice(lambda: _examples(train_set, indices), train_set))}


def read_twice(read: Callable[[], Any], *roots: Any, seed: int = 0) -> list[Any]:
    """What two calls return that begin with the same random numbers, those of generators within `roots` among them, which then
    are as they were."""
    generators, results = Generators(*roots), []
    try:
        for _ in range(2):
            generators.seed(seed)
            results.append(read())
    finally:
        generators.restore()
    return results


def of_examples(first: Any, second: Any) -> dict[str, str]:
    """What the same examples were when they were read twice, with the same random numbers. Nothing, if the two differ: then the
    examples are random by a source of their own, and not the same for any two workers."""
    seen = _digest(first)
    return {_OF_EXAMPLES: seen} if seen is not None and seen == _digest(second) else {}


def _examples(train_set: Any, indices: Sequence[int]) -> list[Any]:
    """Examples of a set that is an array for all of them, or a tuple or dict of such arrays, or anything that has an example at
    each index."""
    if isinstance(train_set, tuple):
        return [[part[i] for part in train_set] for i in indices]
    if isinstance(train_set, Mapping) and indices and indices[0] not in train_set:
        return [{name: part[i] for name, part in train_set.items()} for i in indices]
    return [train_set[i] for i in indices]


class Generators:
    """The global random numbers, and those of generators within `roots`: as they are now, for restore()."""

    def __init__(self, *roots: Any):
        found: dict[int, Any] = {id(generator): generator for generator in _globals()}
        for root in roots:
            found.update((id(generator), generator) for generator in _within(root))
        self._calls = [calls for calls in map(_calls_of, found.values()) if calls is not None]
        self._states = [save() for save, _, _ in self._calls]

    def restore(self) -> None:
        for (_, restore, _), state in zip(self._calls, self._states):
            restore(state)

    def seed(self, seed: int) -> None:
        for _, _, begin in self._calls:
            begin(seed % 2**32)


def _globals() -> list[Any]:
    torch = sys.modules.get("torch")
    return [random, np.random, *([] if torch is None else [torch.default_generator])]


def _calls_of(generator: Any) -> tuple[Callable[[], Any], Callable[[Any], Any], Callable[[int], Any]] | None:
    """What saves, restores and seeds it; None: it is no generator, or has no state."""
    if isinstance(generator, np.random.Generator):
        bits: Any = generator.bit_generator

        def set_state(state: Any) -> None:
            bits.state = state

        return (lambda: bits.state), set_state, lambda seed: set_state(type(bits)(seed).state)
    if generator is random or isinstance(generator, random.Random) and not isinstance(generator, random.SystemRandom):
        return generator.getstate, generator.setstate, generator.seed
    if generator is np.random or isinstance(generator, np.random.RandomState):
        numpys: Any = generator
        return numpys.get_state, numpys.set_state, numpys.seed
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(generator, torch.Generator):
        torchs: Any = generator
        return torchs.get_state, torchs.set_state, torchs.manual_seed
    return None


def _within(root: Any) -> Iterator[Any]:
    """The object, and those that it has: attributes, and entries of lists, tuples and dicts."""
    queue: list[Any] = [root]
    seen: set[int] = set()
    while queue and len(seen) < _OBJECTS:
        found = queue.pop(0)
        if id(found) in seen or isinstance(found, (type, types.ModuleType, types.FunctionType, str, bytes, int, float)):
            continue
        seen.add(id(found))
        yield found
        if isinstance(found, (list, tuple)):
            queue += found[:_ENTRIES]
        elif isinstance(found, dict):
            queue += list(found.values())[:_ENTRIES]
        elif not hasattr(found, "__array__"):
            queue += list(getattr(found, "__dict__", {}).values())


class _Unknown(Exception):
    """A value that cannot be compared."""


def _digest(value: Any) -> str | None:
    """Of values that are made of arrays, numbers, texts, mappings and sequences; None: there is something else in them."""
    hasher = hashlib.blake2b(digest_size=8)
    try:
        _add(hasher.update, value, 0)
    except _Unknown:
        return None
    return hasher.hexdigest()


def _add(update: Callable[[bytes], Any], value: Any, depth: int) -> None:
    def tag(*of: Any) -> None:
        update((" ".join(map(str, of)) + "\n").encode(errors="surrogatepass"))

    if depth > _DEPTH:
        raise _Unknown
    if value is None or isinstance(value, (bool, int, float, complex, str, os.PathLike)) and not isinstance(value, np.generic):
        tag(type(value).__name__, len(str(value)), value)
    elif isinstance(value, (bytes, bytearray)):
        tag("bytes", len(value))
        update(bytes(value))
    elif isinstance(value, Mapping):
        tag("mapping", len(value))
        for key, entry in value.items():
            _add(update, key, depth + 1)
            _add(update, entry, depth + 1)
    elif isinstance(value, Set):
        _add(update, sorted(map(str, value)), depth + 1)
    elif isinstance(value, (list, tuple, range)):
        tag("sequence", len(value))
        for entry in value:
            _add(update, entry, depth + 1)
    else:
        _add_array(update, tag, value, depth)


def _add_array(update: Callable[[bytes], Any], tag: Callable[..., None], value: Any, depth: int) -> None:
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            # NumPy has no bfloat16.
            value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        if not (hasattr(value, "__array__") or hasattr(value, "__array_interface__")):
            raise _Unknown
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        raise _Unknown from error
    if array.dtype == object:
        _add(update, array.tolist(), depth + 1)
    else:
        tag("array", array.dtype.str, array.shape)
        update(array.tobytes())
