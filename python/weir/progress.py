"""How far a job is, as a line that is drawn anew."""
from __future__ import annotations

import math
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, TextIO

if TYPE_CHECKING:
    from .exchange import Work

# Between two drawings, in seconds.
_PAUSE = 0.2


def is_live(stream: Any) -> bool:
    """Whether a line that is drawn anew looks as such there: in a terminal or a notebook."""
    # None: a program without a console.
    return stream is not None and (stream.isatty() or type(stream).__module__.startswith("ipykernel"))


def say(text: str) -> None:
    """A line on stderr."""
    try:
        print(f"weir: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass  # as of a line of progress


def _time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class ProgressLine:
    """Shows the job's epoch, its share that is done, the mean loss since the last drawing, and how long the rest takes.

    epoch: the examples of one. The first step begins with the line, which stays when it is closed.
    """

    def __init__(self, stream: TextIO, epoch: int, clock: Callable[[], float] = time.monotonic):
        self._stream, self._epoch, self._clock = stream, max(epoch, 1), clock
        self._begin = clock()
        self._drawn = -math.inf
        self._examples = 0  # since _begin
        self._losses: list[tuple[float, int]] = []
        self._loss: float | None = None
        self._work: Work | None = None
        self._width = 0

    def add(self, work: Work, loss: float | None) -> None:
        """This work was done."""
        self._work = work
        self._examples += work.examples
        if loss is not None:
            self._losses.append((loss, work.examples))
        if self._clock() - self._drawn >= _PAUSE:
            self._draw()

    def close(self) -> None:
        if self._work is not None:
            self._draw()
            self._write("\n")

    def _draw(self) -> None:
        assert self._work is not None
        self._drawn = self._clock()
        # Positions count from the job's first example.
        work = self._work
        total, done = work.first_example + work.examples_left, work.first_example + work.examples
        left = total - done
        if self._losses:
            self._loss = sum(loss * n for loss, n in self._losses) / sum(n for _, n in self._losses)
            self._losses.clear()
        rate = self._examples / max(self._drawn - self._begin, 1e-9)
        pieces = [f"epoch {math.ceil(done / self._epoch)}/{math.ceil(total / self._epoch)}", f"{100 * done // total:3} %"]
        if self._loss is not None:
            pieces.append(f"loss {self._loss:.4g}")
        pieces += [f"{rate:,.0f} examples/s", f"{_time(left / rate)} left" if left else f"{_time(self._drawn - self._begin)}"]
        # A line that wraps could not be drawn anew.
        text = "  ".join(pieces)[:shutil.get_terminal_size().columns - 1]
        self._write("\r" + text.ljust(self._width))
        self._width = len(text)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            pass  # a terminal that is gone ends no training
