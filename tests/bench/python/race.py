"""Turns: a race's contestants are all up and warm the whole time, and each works only in its turn. For a turn a contestant gets a line
with a number of steps, and with the word of its way to work if it has several; it answers with a line of JSON with the seconds of each
step."""
import json
import os
import pathlib
import socket
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass, field

import processes
from processes import Failed

# A turn's first step finds the caches full of another contestant's data, and does not count.
UNCOUNTED = 1
LEAST_STEPS = 3


@dataclass
class Contestant:
    name: str
    # Its command. `connects`: it is told its turns through the socket of its argument --turns=PATH, else through its standard input.
    command: list
    connects: bool = True
    environment: dict = field(default_factory=dict)
    # The ways to work that one process takes turns in, as contestants of their own: name -> word.
    ways: dict = field(default_factory=dict)


class Player:
    """A contestant at work."""

    def __init__(self, contestant, limit):
        self.name = contestant.name
        self._limit = limit
        self._files = []
        self._errors = tempfile.TemporaryFile()
        options = dict(stderr=self._errors, start_new_session=True, env={**os.environ, **contestant.environment})
        if contestant.connects:
            with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
                path = str(pathlib.Path(folder) / "turns")
                listener.bind(path)
                listener.listen()
                self._process = subprocess.Popen([*contestant.command, f"--turns={path}"], stdin=subprocess.DEVNULL,
                                                 stdout=self._errors, **options)
                self._socket = self._accept(listener)
        else:
            self._socket, its = socket.socketpair()
            with its:
                self._process = subprocess.Popen(contestant.command, stdin=its, stdout=its, **options)
        self._socket.settimeout(limit)
        self._stream = self._socket.makefile("r", encoding="ascii")
        self._files = [self._stream, self._socket, self._errors]

    def _accept(self, listener):
        deadline = time.monotonic() + self._limit
        listener.settimeout(0.1)
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                return listener.accept()[0]
            except TimeoutError:
                pass
        raise self._end_with("did not begin")

    def take(self, steps, way):
        """The seconds of each step."""
        try:
            self._socket.sendall(f"{steps} {way}".strip().encode() + b"\n")
            line = self._stream.readline()
        except OSError as error:
            raise self._end_with(str(error)) from error
        if not line:
            raise self._end_with("ended")
        return json.loads(line)

    def _end_with(self, why):
        failed = Failed(f"{self.name} {why}:\n    {processes.tail_of(self._errors)}")
        self.end()
        return failed

    def end(self):
        # All that it has started ends with it.
        processes.end(self._process)
        for file in self._files:
            file.close()


def race(contestants, rounds, seconds, limit, progress):
    """{contestant's name: [the median seconds of a step, by turn]}. `seconds`: the rough length of a turn; `limit`: the most seconds
    that a contestant may take for anything. Raises Failed if a contestant fails."""
    players, entered = [], {}
    try:
        for contestant in contestants:
            players.append(Player(contestant, limit))
            entered |= {name: (players[-1], way) for name, way in (contestant.ways or {contestant.name: ""}).items()}
        steps, turns = {}, {name: [] for name in entered}
        for name, (player, way) in entered.items():
            player.take(UNCOUNTED, way)
            first = statistics.median(player.take(UNCOUNTED + LEAST_STEPS, way)[UNCOUNTED:])
            steps[name] = max(LEAST_STEPS, int(seconds / first))
        for number in range(rounds):
            for name, (player, way) in entered.items():
                taken = player.take(UNCOUNTED + steps[name], way)
                turns[name].append(statistics.median(taken[UNCOUNTED:]))
            progress(number + 1)
        return turns
    finally:
        for player in players:
            player.end()
