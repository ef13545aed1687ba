"""The calls for work of a membership."""
from __future__ import annotations

import bisect
import ctypes
import itertools
import weakref
from typing import Optional

from . import _library
from ._library import library
from .errors import check
from .exchange import Work
from .future import Future


class WorkCalls:
    """The library gives work to a call also when nobody waits for it any more; so a later call continues it.

    Thread-safe: finalizers come here too, in any thread, so there are single operations in place of a lock.
    """

    def __init__(self) -> None:
        #: A call has found that there is no more work.
        self.finished = False
        self._ended = False
        # Those whose results were not taken, with their numbers and in their order.
        self._unanswered: list[tuple[int, int]] = []
        self._numbers = itertools.count()

    def begin(self, client: int) -> WorkCall:
        """client: the library's, in this membership."""
        try:
            number, handle = self._unanswered.pop(0)
        except IndexError:
            number, handle = next(self._numbers), library.next_work(client)
        return WorkCall(self, number, handle)

    def end(self) -> None:
        """The membership ends."""
        self._ended = True
        while self._unanswered:
            library.free_future(self._unanswered.pop()[1])

    def take_back(self, number: int, handle: int) -> bool:
        if not self._ended:
            bisect.insort(self._unanswered, (number, handle))
        return not self._ended


class WorkCall(Future[Optional[Work]]):
    """A call for work. If it goes before its result is taken, it is left to the next one."""

    def __init__(self, calls: WorkCalls, number: int, handle: int):
        self._calls = this = weakref.ref(calls)
        self._number = number

        def take(future: int) -> Work | None:
            work, done = _library.Work(), ctypes.c_int()
            check(library.take_work(future, ctypes.byref(work), ctypes.byref(done)))
            if not done.value:
                return Work.of(work)
            of = this()
            if of is not None:
                of.finished = True
            return None

        super().__init__(handle, take)

    def give_up(self) -> None:
        """Nobody waits for it any more."""
        calls = self._calls()
        if self._handle is not None and calls is not None and calls.take_back(self._number, self._handle):
            self._handle = None

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.give_up()
            super().__del__()
