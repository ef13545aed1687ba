"""Whether Ctrl-C was pressed."""
from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Interrupts:
    """Within `with`, notes Ctrl-C, which raises KeyboardInterrupt as ever. If Ctrl-C ends the loop over a generator, the
    generator itself gets only GeneratorExit. Nothing is noted where the program has a handler of its own. All instances
    that are within `with` note it, since nothing tells whose loop it ends."""

    def __init__(self) -> None:
        self.seen = False

    def __enter__(self) -> Interrupts:
        _noting.add(self)
        if _is_main() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _noting.discard(self)
        # Another loop may go on: one that a program keeps without ending it.
        if not _noting and _is_main() and signal.getsignal(signal.SIGINT) is _note:
            signal.signal(signal.SIGINT, signal.default_int_handler)


_noting: set[Interrupts] = set()


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _note(number: int, frame: FrameType | None) -> None:
    for interrupts in tuple(_noting):
        interrupts.seen = True
    signal.default_int_handler(number, frame)
