"""Calls that take their time."""
from __future__ import annotations

import asyncio
import math
import threading
import time
from typing import Any, Callable, Generator, Generic, TypeVar

from ._library import library
from .errors import check

T = TypeVar("T")

# How long a wait is deaf to Ctrl-C, in seconds.
_SLICE = 0.1

# How often a coroutine looks whether the result is there, in seconds: less and less often.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.005

# Calls that nobody waits for any more, with the memory that they still read or write.
_abandoned: list[tuple[int, Any]] = []
_sweeping = threading.Lock()


class Future(Generic[T]):
    """The result of a call that continues by itself.

    It ends by itself too, with a result or with an error that names the peer it waited for. Letting go of a future
    does not end its call. One thread at a time uses a future.
    """

    def __init__(self, handle: int, take: Callable[[int], T], memory: Any = None):
        self._handle: int | None = handle
        self._take = take
        self._memory = memory
        self._result: T | None = None
        self._error: BaseException | None = None
        _sweep()

    def done(self) -> bool:
        """Whether result() would return at once."""
        return self._handle is None or bool(library.wait(self._handle, 0))

    def wait(self, timeout: float) -> bool:
        """As done(), after `timeout` seconds at most."""
        return self._handle is None or bool(library.wait(self._handle, timeout))

    def result(self, timeout: float | None = None) -> T:
        """Waits for the result, and returns it or raises the call's error.

        timeout: seconds; TimeoutError if they have passed, and the call continues. Ctrl-C ends the wait.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while self._handle is not None and not library.wait(self._handle, min(_SLICE, deadline - time.monotonic())):
            if time.monotonic() >= deadline:
                raise TimeoutError(f"no result within {timeout} s; the call goes on")
        if self._handle is not None:
            try:
                self._result = self._take(self._handle)
            except Exception as error:
                self._error = error
            self._free()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def __await__(self) -> Generator[Any, None, T]:
        """`await future` in a coroutine: as result(), while the event loop continues. A coroutine that is cancelled leaves
        the call alone."""
        pause = _SHORTEST_PAUSE
        while not self.done():
            yield from asyncio.sleep(pause).__await__()
            pause = min(2 * pause, _LONGEST_PAUSE)
        return self.result()

    def _free(self) -> None:
        handle, self._handle, self._memory = self._handle, None, None
        library.free_future(handle)

    def __del__(self) -> None:
        handle: int | None = getattr(self, "_handle", None)
        if handle is None:
            return
        if self._memory is None or library.wait(handle, 0):
            self._free()
        else:
            _abandoned.append((handle, self._memory))


def end_of(handle: int, memory: Any = None) -> Future[None]:
    """The future of a call without a result."""
    return Future(handle, lambda future: check(library.take(future)), memory)


def _sweep() -> None:
    # Another thread does it already, or this one (which a finalizer has interrupted).
    if not _sweeping.acquire(blocking=False):
        return
    try:
        for entry in list(_abandoned):
            if library.wait(entry[0], 0):
                _abandoned.remove(entry)
                library.free_future(entry[0])
    finally:
        _sweeping.release()


def wait_all() -> None:
    """Waits, a second at most, for calls that still use memory; at the interpreter's end."""
    deadline = time.monotonic() + 1
    while _abandoned and time.monotonic() < deadline:
        library.wait(_abandoned[0][0], 0.05)
        _sweep()


class Memory:
    """Floats that belong to the library; an array of them keeps it alive."""

    def __init__(self, address: int, elements: int, owner: Any, read_only: bool):
        self._owner = owner
        self.__array_interface__ = {"shape": (elements,), "typestr": "<f4", "data": (address, read_only), "version": 3}


