"""Whether Ctrl-C was pressed."""
from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Callable

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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
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
