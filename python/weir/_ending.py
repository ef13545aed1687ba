"""What becomes of a program's clients when it ends; the exit code where an error of Weir ends it; whether Ctrl-C was pressed; and
SIGTERM."""
from __future__ import annotations

import atexit
import gc
import io
import os
import signal
import socket
import sys
import threading
import time
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
        if client.joined and _uncaught is None and terminated() is None:
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


# ---- SIGTERM

# How long the main thread may take until it ends the program itself, in seconds; it may be in a call that takes long.
_UNHEARD = 1.0


class Terminated(SystemExit):
    """SIGTERM has ended the program."""

    def __init__(self) -> None:
        super().__init__(143)

    def __str__(self) -> str:
        return "SIGTERM"


_terminated: Terminated | None = None
# The thread that waits for the signal, from the first call of end_on_sigterm() on.
_watch: threading.Thread | None = None


def terminated() -> Terminated | None:
    """If SIGTERM has ended the program: what ends it."""
    return _terminated


def end_on_sigterm() -> None:
    """From now on SIGTERM ends the program by an exception, so that its clients leave their jobs; a few seconds later at the latest, and
    with 143. Unless the program has a handler of its own, now or later; and from the main thread alone."""
    global _watch
    if not _is_main() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    signal.signal(signal.SIGTERM, _on_term)
    if _watch is not None:
        return
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)  # of an event loop, say
        return
    _watch = threading.Thread(target=_end_in_time, args=(ours, theirs), name="weir SIGTERM", daemon=True)
    _watch.start()


def _on_term(number: int, frame: FrameType | None) -> None:
    global _terminated
    if _terminated is None:
        _terminated = Terminated()
        raise _terminated


def _end_in_time(ours: socket.socket, theirs: socket.socket) -> None:
    while signal.SIGTERM not in ours.recv(64) or signal.getsignal(signal.SIGTERM) is not _on_term:
        pass
    now = time.monotonic()
    clients = list(_open)
    end = now + LAST_CALL + max([0.0, *(client.save_seconds() for client in clients)])
    while _terminated is None and time.monotonic() < now + _UNHEARD:
        time.sleep(0.05)
    if _terminated is None:
        for client in clients:
            client.give_up(Terminated())
    time.sleep(max(0.0, end - time.monotonic()))
    os._exit(143)


# Python forgets a signal that a child gets before it runs, and its handler has told the parent's thread of it. So a child gets none before
# it has the handler of other programs.
_forking = threading.local()


def _before_fork() -> None:
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}) if signal.getsignal(signal.SIGTERM) is _on_term else None


def _after_fork() -> None:
    if _forking.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _in_child() -> None:
    if _forking.mask is not None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if _watch is not None:
            signal.set_wakeup_fd(-1)
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
