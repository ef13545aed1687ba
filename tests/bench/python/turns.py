"""The end of a race (race.py) in the contestant."""
import json
import socket
import time


class Turns:
    """A contestant's end, in a Python program: call step() before each step. The program ends with its bench."""

    def __init__(self, path):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._stream = self._socket.makefile("rw", encoding="ascii")
        self._steps, self._seconds, self._begin = 0, [], None
        #: The way to work in this turn (Contestant.ways); "" where there is one.
        self.way = ""

    def step(self):
        """Ends a step, and begins the next one when it is this contestant's turn."""
        now = time.perf_counter()
        if self._begin is not None:
            self._seconds.append(now - self._begin)
        if len(self._seconds) == self._steps:
            if self._begin is not None:
                self._stream.write(json.dumps(self._seconds) + "\n")
                self._stream.flush()
            line = self._stream.readline()
            if not line:
                raise SystemExit(0)
            steps, *way = line.split()
            self._steps, self._seconds, self.way = int(steps), [], "".join(way)
            now = time.perf_counter()
        self._begin = now
