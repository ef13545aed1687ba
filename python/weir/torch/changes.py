"""Notices that a program changes, in the loop, what is the servers' to change."""
from __future__ import annotations

import operator
from typing import Any, Collection, Mapping, Sequence

from ..errors import ConfigError
from ..job import FlatTensors
from .watch import Constants, Known
from .weights import ModelWeights


_get: Any = dict.get

# After the first batches, one batch of so many pays for a sample of the values, and one for a look at the modules, which are also
# looked at when other gradients are missing than in the batch before.
_FIRST, _EVERY = 64, 8


class Changes:
    """Looks twice in a batch, for some microseconds: before the gradients go, and before the next batch. ConfigError: a trained
    parameter has other values than the batch began with; a buffer of the job has others than step() has sent; a constant has
    changed; or the model has other modules or tensors, or tensors of other types. Values that are back when it looks are right.

    It sees all that torch counts as an operation in place, and memory that was replaced (`p.data = ...`). Of what torch does not
    count (`p.data.clamp_()`) it sees what falls into a sample, which moves on with each of the first batches, then with every eighth.
    """

    def __init__(self, weights: ModelWeights):
        self._weights = weights
        self._parameters, self._buffers = Known(weights.parameters, 0), Known(weights.buffers, len(weights.parameters))
        self._batches, self._missing = 0, -1
        self._learn()

    def loaded(self, values: FlatTensors) -> None:
        """The parameters have these values, whose memory stays as it is until the next call of this."""
        self._parameters.loaded(values)

    def check(self) -> None:
        """Before the gradients of a batch go."""
        self._weights.check_frozen()
        if self._places.keys:
            self._take_in()
        self._refuse(self._parameters.changed_in_place())
        if self._constants.tensors:
            self._refuse_constant(self._constants.changed_in_place())

    def sent(self, values: FlatTensors, missing: int) -> None:
        """These values of the job's buffers are about to go to the servers; their memory stays as it is until the next call of loaded().
        missing: how many parameters have no gradient."""
        if self._buffers.tensors:
            self._buffers.expect(values)
        # Those of a layer that was replaced have none.
        if missing != self._missing or self._batches % _EVERY == 0:
            self._missing = missing
            if not (self._modules.same() and self._modules.complete() and self._places.complete()):
                self._learn_anew()
        self._batches += 1

    def check_after(self) -> None:
        """Before the next batch."""
        sample = self._batches <= _FIRST or self._batches % _EVERY == 0
        self._refuse(self._parameters.changed(sample))
        if self._places.keys:
            self._take_in()
        if self._buffers.tensors:
            self._refuse_buffer(self._buffers.changed(sample))
        if self._constants.tensors:
            self._refuse_constant(self._constants.changed(sample))

    def _refuse(self, parameter: str | None) -> None:
        if parameter is not None:
            self._weights.check()
            raise ConfigError(f"{parameter} was changed in the loop, but the servers have the weights, and the next batch would begin "
                              "without the change. To limit weights set optimizer.clip_weights of the job, or of one of its optimizer.groups. "
                              "To evaluate other weights put those of the batch back before the next one, bit for bit; opt.snapshot() "
                              "does so. Initial weights go into the model before the loop")

    def _refuse_buffer(self, buffer: str | None) -> None:
        if buffer is not None:
            self._weights.check()
            raise ConfigError(f"{buffer} was changed after step(), which had sent its values, so that the change would be lost. Change it "
                              "before step(), or put its values back before the next batch; a forward that shall not count needs "
                              "model.eval()")

    def _refuse_constant(self, constant: str | None) -> None:
        if constant is not None:
            raise self._weights.others.changed(constant)

    def _take_in(self) -> None:
        # forward may put other tensors in the places of buffers.
        if not self._places.same():
            self._weights.take_in()
            if not self._places.same():
                self._learn_anew()

    def _learn(self) -> None:
        model, others = self._weights.model, self._weights.others
        modules = list(model.modules())
        self._modules = _Entries([entries for m in modules for entries in (m._modules, m._parameters)])
        own = {id(t) for name, t in model.named_buffers() if others.rule(name) == "own"}
        self._places = _Entries([m._buffers for m in modules], own)
        self._constants = Constants(others.constants)

    def _learn_anew(self) -> None:
        """The model has other modules or buffers. It may, where they are not the job's, and constants keep their values."""
        self._weights.check()
        others = self._weights.others
        now = others.constants_now()
        self._refuse_constant(self._constants.has_other_values(now, others.passing()))
        others.constants = now
        self._learn()


class _Entries:
    """What is in the dicts of a model's modules. Those of `but`, by id(), may become others."""

    def __init__(self, dicts: Sequence[Mapping[str, object]], but: Collection[int] = ()):
        entries = [(of, key, value) for of in dicts for key, value in of.items() if id(value) not in but]
        self._of, self.keys, self._values = ([entry[i] for entry in entries] for i in range(3))
        self._filled, self._empty = [of for of in dicts if of], [of for of in dicts if not of]
        self._lengths = list(map(len, self._filled))

    def same(self) -> bool:
        """Whether what was there is there."""
        return all(map(operator.is_, map(_get, self._of, self.keys), self._values))

    def complete(self) -> bool:
        """Whether there is as much as there was."""
        return not any(self._empty) and list(map(len, self._filled)) == self._lengths
