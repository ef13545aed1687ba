"""What becomes of a program's clients when it ends; the exit code where an error of Weir ends it; and whether Ctrl-C was pressed."""
from __future__ import annotations

import atexit
import gc
import io
import os
import signal
import sys
import threading
import weakref
from types import FrameType
from typing import TYPE_CHECKING, Any, Callable

from .errors import Error
from .future import wait_all
from .progress import say

if TYPE_CHECKING:
    from .client import Client

# Leaving with a reason takes about a second; at the interpreter's end nothing may take longer than this, in seconds.
LAST_CALL = 3.0

_open: "weakref.WeakSet[Client]" = weakref.WeakSet()


def close_at_end(client: Client) -> None:
    """If the client is still there when the interpreter ends, it gives up what it has not left, and is closed."""
    _open.add(client)


# The error that ends the program, if one does; Ctrl-C, too.
_uncaught: BaseException | None = None


def _on_uncaught(kind: Any, error: BaseException, trace: Any, previous: Any = sys.excepthook) -> None:
    global _uncaught
    previous(kind, error, trace)
    # An interactive interpreter continues.
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return
    _uncaught = error
    if isinstance(error, Error):
        # Python would exit with 1, which does not tell an orchestrator whether another try may help. It takes this in the place of
        # the error.
        raise SystemExit(error.exit_code)


def _close_all() -> None:
    global _uncaught
    for client in list(_open):
        if client.joined and _uncaught is None:
            say("the program ended before the job was done")
        client.give_up(_uncaught or "the program ended before the job was done")
        client.close()
    wait_all()
    if isinstance(_uncaught, Error):
        _flush_files()
    _uncaught = None


def _flush_files() -> None:
    """What Python does as it ends; but an error that SystemExit takes the place of, and so the files that its frames know, stay."""
    for found in gc.get_objects():
        if issubclass(type(found), io.IOBase):
            try:
                found.flush()
            except Exception:
                pass  # it is closed, or its disk is full; nobody is left to be told


sys.excepthook = _on_uncaught
atexit.register(_close_all)
# A forked child is in no job.
os.register_at_fork(after_in_child=_open.clear)


# ---- Ctrl-C

_Handler = Callable[[int, "FrameType | None"], object]


class Interrupts:
    """Within `with`, notes Ctrl-C that raises KeyboardInterrupt, which it does as ever: by Python's handler or by the
    program's. If Ctrl-C ends the loop over a generator, the generator itself gets only GeneratorExit. Nothing is noted of a
    handler that the program sets meanwhile. All instances that are within `with` note it, since nothing tells whose loop it
    ends."""

    def __init__(self) -> None:
        self.seen = False

    def __enter__(self) -> Interrupts:
        global _before, _ours
        _noting.add(self)
        if _is_main():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler) and handler is not _ours:
                _before, _ours = handler, _noting_handler(handler)
                signal.signal(signal.SIGINT, _ours)
        return self

    def __exit__(self, *_: object) -> None:
        _noting.discard(self)
        # Another loop may continue: one that a program keeps without ending it.
        if not _noting and _is_main() and signal.getsignal(signal.SIGINT) is _ours:
            signal.signal(signal.SIGINT, _before)


_noting: set[Interrupts] = set()

# The handler that notes, and the one that it stands before.
_ours: _Handler | None = None
_before: _Handler | None = None


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _noting_handler(handler: _Handler) -> _Handler:
    def handle(number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except KeyboardInterrupt:
            for interrupts in tuple(_noting):
                interrupts.seen = True
            raise

    return handle
