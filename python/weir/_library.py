"""libweir.so through ctypes: python/capi/weir_c.h says what each function does. And the programs that the wheel brings, as commands."""
from __future__ import annotations

import ctypes
import os
import pathlib
import signal
import sys
import types
from ctypes import POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_uint32, c_uint64
from ctypes import c_void_p
from typing import Any


class Tensor(Structure):
    _fields_ = [("name", c_char_p), ("shape", POINTER(c_int64)), ("rank", c_size_t), ("initializer", c_int),
                ("value", c_float), ("buffer", c_int), ("aliases", POINTER(c_char_p)), ("n_aliases", c_size_t)]


class Fingerprint(Structure):
    _fields_ = [("name", c_char_p), ("value", c_char_p)]


class Options(Structure):
    _fields_ = [("cluster", c_char_p), ("task", c_char_p), ("token_file", c_char_p), ("history", c_char_p),
                ("log_level", c_char_p), ("train_examples", c_uint64), ("servers", c_uint32), ("reader", c_int), ("evaluates", c_int),
                ("fingerprints", POINTER(Fingerprint)), ("n_fingerprints", c_size_t)]


class Membership(Structure):
    _fields_ = [("worker", c_uint32), ("start_clock", c_uint64), ("draining", c_int), ("leading", c_int),
                ("gains_from_gate", c_int), ("in_process", c_int)]


class Progress(Structure):
    _fields_ = [("examples", c_uint64), ("batches", c_uint64), ("loss_sum", c_double), ("last_examples", c_uint64),
                ("last_loss_sum", c_double), ("not_finite", c_uint64)]


class OrderToEvaluate(Structure):
    _fields_ = [("id", c_uint64), ("epoch", c_uint64)]


class Evaluation(Structure):
    _fields_ = [("loss", c_double), ("accuracy", c_double), ("auc", c_double), ("examples", c_uint64), ("validation", c_int),
                ("order", c_uint64), ("final", c_int), ("weights_sha256", c_char_p)]


class Metric(Structure):
    _fields_ = [("name", c_char_p), ("value", c_double)]


class Work(Structure):
    _fields_ = [("clock", c_uint64), ("batch", c_uint64), ("first_example", c_uint64), ("examples", c_uint64),
                ("examples_left", c_uint64), ("part", c_uint32), ("last_of_clock", c_int)]


class Rows(Structure):
    _fields_ = [("table", c_uint32), ("keys", c_void_p), ("n", c_size_t), ("values", c_void_p)]


class Push(Structure):
    _fields_ = [("work", POINTER(Work)), ("base", c_void_p), ("gradient", POINTER(c_void_p)), ("gate", c_void_p),
                ("rows", POINTER(Rows)), ("n_rows", c_size_t), ("weight", c_double)]


class Pull(Structure):
    _fields_ = [("clock", c_uint64), ("in_place", c_int), ("into", POINTER(c_void_p)), ("rows", POINTER(Rows)),
                ("n_rows", c_size_t)]


class Pushed(Structure):
    _fields_ = [("applied", c_int), ("staleness", c_uint64), ("reason", c_char * 256)]


# A result that is a weir_error is a c_void_p: None if the call has succeeded.
_FUNCTIONS = {
    "version": (c_char_p, []),
    "error_kind": (c_int, [c_void_p]),
    "error_code": (c_int, [c_void_p]),
    "error_exit_code": (c_int, [c_void_p]),
    "error_message": (c_char_p, [c_void_p]),
    "free_error": (None, [c_void_p]),
    "load_job": (c_void_p, [c_char_p, c_char_p, POINTER(c_char_p), c_size_t, POINTER(c_void_p)]),
    "job_json": (c_char_p, [c_void_p]),
    "free_job": (None, [c_void_p]),
    "save_weights": (c_void_p, [c_char_p, POINTER(Tensor), c_size_t, POINTER(c_void_p)]),
    "open": (c_void_p, [c_void_p, POINTER(Options), POINTER(Tensor), c_size_t]),
    "take_client": (c_void_p, [c_void_p, POINTER(c_void_p)]),
    "resumed_from": (c_char_p, [c_void_p]),
    "load_resumed": (c_void_p, [c_void_p, POINTER(c_void_p), POINTER(Rows), c_size_t]),
    "join": (c_void_p, [c_void_p, POINTER(c_void_p)]),
    "leave": (c_void_p, [c_void_p, c_int, c_char_p]),
    "close_client": (c_void_p, [c_void_p]),
    "free_client": (None, [c_void_p]),
    "get_membership": (c_void_p, [c_void_p, POINTER(Membership)]),
    "wait_draining": (c_void_p, [c_void_p, c_double]),
    "set_progress": (c_void_p, [c_void_p, POINTER(Progress)]),
    "set_computing": (None, [c_void_p, c_int]),
    "take_order": (c_void_p, [c_void_p, c_double, POINTER(OrderToEvaluate)]),
    "awaits_evaluation": (c_void_p, [c_void_p]),
    "take_answer": (c_void_p, [c_void_p, POINTER(c_int)]),
    "report": (c_void_p, [c_void_p, c_void_p, POINTER(Evaluation)]),
    "log": (c_void_p, [c_void_p, POINTER(Metric), c_size_t, c_int, c_double]),
    "log_scores": (c_void_p, [c_void_p, c_char_p, c_void_p, c_void_p, c_size_t]),
    "stop": (c_void_p, [c_void_p, c_char_p]),
    "next_work": (c_void_p, [c_void_p]),
    "exchange": (c_void_p, [c_void_p, POINTER(Push), POINTER(Pull)]),
    "snapshot": (c_void_p, [c_void_p, POINTER(c_void_p), POINTER(Rows), c_size_t]),
    "new_gradient": (c_void_p, [c_void_p, POINTER(c_void_p), POINTER(c_void_p)]),
    "free_gradient": (None, [c_void_p]),
    "new_gate": (c_void_p, []),
    "gate_ready": (None, [c_void_p, c_size_t]),
    "gate_fail": (None, [c_void_p, c_char_p]),
    "free_gate": (None, [c_void_p]),
    "wait": (c_int, [c_void_p, c_double]),
    "take": (c_void_p, [c_void_p]),
    "take_work": (c_void_p, [c_void_p, POINTER(Work), POINTER(c_int)]),
    "take_exchange": (c_void_p, [c_void_p, POINTER(Pushed), POINTER(c_void_p)]),
    "free_future": (None, [c_void_p]),
    "weights_past": (c_int, [c_void_p]),
    "weights_version": (c_uint64, [c_void_p]),
    "weights_piece": (c_int, [c_void_p, c_size_t, c_size_t, POINTER(c_void_p), POINTER(c_size_t)]),
    "free_weights": (None, [c_void_p]),
    "new_order": (c_void_p, [c_uint64, c_uint64, POINTER(c_void_p)]),
    "fill_order": (None, [c_void_p, c_uint64, c_size_t, c_void_p]),
    "free_order": (None, [c_void_p]),
}


_HERE = pathlib.Path(__file__).resolve().parent


def _find() -> pathlib.Path:
    # In a wheel, and in a checkout that was built.
    places = [_HERE / "lib" / "libweir.so", _HERE.parent.parent / "bazel-bin" / "python" / "capi" / "libweir.so"]
    if os.environ.get("WEIR_LIBRARY"):
        places = [pathlib.Path(os.environ["WEIR_LIBRARY"])]
    for place in places:
        if place.exists():
            return place
    raise ImportError("libweir.so is not at " + " nor at ".join(map(str, places)) +
                      "; build it with `./dev build //python/capi:libweir.so`, or name it with WEIR_LIBRARY")


_path = _find()
# It is called by nobody else, and calls its own libraries, even where others have put their gRPC or protobuf before all: TensorFlow
# does.
_loaded = ctypes.CDLL(str(_path), mode=os.RTLD_LOCAL | os.RTLD_NOW | os.RTLD_DEEPBIND)
#: The functions of weir_c.h, without their prefix.
library = types.SimpleNamespace()
for _name, (_result, _arguments) in _FUNCTIONS.items():
    _function = getattr(_loaded, "weir_" + _name)
    _function.restype, _function.argtypes = _result, _arguments
    setattr(library, _name, _function)


class Owner:
    """Has a handle of the library, which goes with it."""

    _handle: Any = None
    # A function of the library, which takes the handle.
    _free: Any

    def __del__(self) -> None:
        if self._handle:
            self._free(self._handle)


def program(name: str) -> str:
    """The program of the library's build: in a wheel, and in a checkout that was built."""
    places = [_path.parent.parent / "bin" / name, _path.parents[2] / {"weir": "cli"}.get(name, name) / name]
    for place in places:
        if place.exists():
            return str(place)
    raise FileNotFoundError(f"{name} is not at " + " nor at ".join(map(str, places)) + "; install weir's wheel, or build it with `./dev build`")


def _become(name: str) -> None:
    # Python ignores these for itself, and what is ignored stays so in the program and in its tasks.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    path = program(name)
    os.execv(path, [path, *sys.argv[1:]])


def weir() -> None:
    _become("weir")


def ps_server() -> None:
    _become("ps_server")


def worker() -> None:
    _become("worker")
