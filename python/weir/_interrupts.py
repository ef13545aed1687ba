"""Whether Ctrl-C was pressed."""
from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Interrupts:
    """Within `with`, notes Ctrl-C, which raises KeyboardInterrupt as ever: a generator whose loop that ends hears nothing but
    GeneratorExit. Where the program has a handler of its own, or another thread is the main one, nothing is noted."""

    def __init__(self) -> None:
        self.seen = False

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # The loop may end in another thread, or after another one that began later.
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) == self._note:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        signal.default_int_handler(number, frame)
