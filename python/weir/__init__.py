"""Weir: data-parallel training on parameter servers. docs/python.md is the guide; weir.torch is for PyTorch."""
from ._library import library as _functions
from .client import Client
from .errors import ConfigError, Diverged, Drained, Error, Fenced, JobDone, PeerLost, StorageError
from .exchange import Gate, Gradient, Pushed, View, Weights, Work
from .future import Future
from .job import ExampleOrder, Floats, Job, Tensor, save_weights
from .steps import Step
from .tables import Keys, Rows, Tables

#: As `weir --version` says it.
__version__: str = _functions.version().decode()

__all__ = [
    "Client", "ConfigError", "Diverged", "Drained", "Error", "ExampleOrder", "Fenced", "Floats", "Future", "Gate", "Gradient",
    "Job", "JobDone", "PeerLost", "Pushed", "Step", "StorageError", "Tensor", "View", "Weights", "Work",
    "save_weights"
]
