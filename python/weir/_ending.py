"""What becomes of a program's clients when it ends; and the exit code where an error of Weir ends it."""
from __future__ import annotations

import atexit
import gc
import io
import os
import sys
import weakref
from typing import Any, Protocol

from .errors import Error
from .future import wait_all
from .progress import say

# Leaving with a reason takes about a second; at the interpreter's end nothing may take longer than this, in seconds.
LAST_CALL = 3.0


class Leaver(Protocol):
    """A client, as far as its end goes."""

    @property
    def joined(self) -> bool: ...

    def give_up(self, failure: BaseException | str) -> None: ...

    def close(self) -> None: ...


_open: "weakref.WeakSet[Leaver]" = weakref.WeakSet()


def close_at_end(client: Leaver) -> None:
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
