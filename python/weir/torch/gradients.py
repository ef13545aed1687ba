"""The gradients of a batch, on their way from the model's parameters to the servers."""
from __future__ import annotations

import contextlib
import weakref
from typing import Any, Callable, Iterator

import torch

from ..errors import Error
from ..steps import Step
from .device import Indexed
from .weights import ModelWeights


class Gradients:
    """Copies each parameter's gradient to where the servers' messages take it from: all in finish(), or with overlap
    each as soon as backward has made it. The buffers of the job go with them, as forward has left them.

    Between begin() and finish() there is a batch. With overlap a gradient that was sent must stay as it is until
    finish(); Error says which did not, and what to do.
    """

    def __init__(self, weights: ModelWeights, overlap: bool):
        self._parameters, self._buffers = weights.parameters, weights.buffers
        self._place = weights.place
        self._indices = {name: index for index, name in enumerate(weights.all)}
        self._step: Step | None = None
        self._accumulating = False
        # The gradients that were handed over, and their versions: an operation in place makes a new one.
        self._sent: dict[str, tuple[torch.Tensor, int]] = {}
        self._hooks = [_after_accumulation(p, self._hook(name)) for name, p in self._parameters.items()] if overlap else []

    def begin(self, step: Step) -> None:
        self._step = step
        self._sent.clear()

    @contextlib.contextmanager
    def accumulate(self) -> Iterator[None]:
        """Within `with`, backward() hands nothing over."""
        before, self._accumulating = self._accumulating, True
        try:
            yield
        finally:
            self._accumulating = before

    def finish(self) -> int:
        """Hands over what was not yet; a parameter without a gradient counts as zeros. Returns how many have none. Under
        torch.no_grad()."""
        assert self._step is not None
        for name, (grad, version) in self._sent.items():
            if self._parameters[name].grad is not grad or grad._version != version:
                raise Error(f"the gradient of {name} was changed after backward(), when it was on its way to the servers "
                            "(overlap=True). To clip gradients set train.clip_norm or train.clip_value of the job; for other changes give "
                            "overlap=False")
        rest: list[Indexed] = [(index, None if p.grad is None else _dense(p.grad))
                               for index, (name, p) in enumerate(self._parameters.items()) if name not in self._sent]
        rest += enumerate(self._buffers.values(), len(self._parameters))
        missing = self._place.finish(self._step, rest)
        self._step = None
        self._sent.clear()
        return missing

    def close(self) -> None:
        """Takes the hooks off the parameters."""
        self._step = None
        self._sent.clear()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _hook(self, name: str) -> Callable[[], None]:
        this = weakref.ref(self)  # a parameter's hook must not keep what has the parameter

        def hand_over() -> None:
            gradients = this()
            if gradients is not None:
                gradients._hand_over(name)

        return hand_over

    def _hand_over(self, name: str) -> None:
        if self._step is None:
            return
        if name in self._sent:
            raise Error(f"backward() has made a second gradient of {name} for one batch, when the first was on its way to "
                        "the servers (overlap=True). Of several backward() call all but the last within "
                        "`with opt.accumulate():`; otherwise give overlap=False")
        grad = self._parameters[name].grad
        if self._accumulating or grad is None:
            return
        with torch.no_grad():
            self._place.send(self._step, self._indices[name], _dense(grad))
        self._sent[name] = grad, grad._version


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


class _NodeHook:
    """A hook on the node of the graph that accumulates a parameter's gradient. The node lives as long as this."""

    def __init__(self, parameter: torch.nn.Parameter, call: Callable[[], None]):
        with torch.enable_grad():
            self._node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        self._handle = self._node.register_hook(lambda *_: call())

    def remove(self) -> None:
        self._handle.remove()


def _after_accumulation(parameter: torch.nn.Parameter, call: Callable[[], None]) -> Any:
    """Calls `call` whenever backward has added to the parameter's gradient, until remove() of the result."""
    register = getattr(parameter, "register_post_accumulate_grad_hook", None)  # PyTorch 2.1
    return _NodeHook(parameter, call) if register is None else register(lambda _: call())
