"""What can go wrong. Each exception's text says what was seen, where, and what to do."""
from __future__ import annotations

import ctypes
from typing import Any, Callable

from ._library import library


class Error(Exception):
    """A failure of Weir.

    exit_code: the code with which a process should exit because of it (docs/exit_codes.md); codes above 127 ask for
        another try.
    """

    exit_code = 70
    # A number of FailureKind (proto/failure.proto), for leaving the job with this error.
    kind = 7


class ConfigError(Error):
    """The config, the cluster spec, a token or an argument is wrong; or they differ between the tasks of the job."""

    kind, exit_code = 5, 78


class Diverged(Error):
    """Training cannot continue: a gradient or the weights are not finite."""

    kind = 1


class Drained(Error):
    """The job was asked to end, and is saved."""

    kind, exit_code = 2, 138


class Fenced(Error):
    """The job continues without this member, whose lease had ended, or it went back to a checkpoint. Join again."""

    kind, exit_code = 3, 138


class PeerLost(Error):
    """A task that the job needs is gone."""

    kind, exit_code = 4, 138


class StorageError(Error):
    """The job's results cannot be written."""

    kind, exit_code = 6, 74


class JobDone(Error):
    """The job's examples are done, without the work that this member had yet to do."""

    kind, exit_code = 0, 0


_BY_KIND: dict[int, type[Error]] = {cls.kind: cls for cls in (Diverged, Drained, Fenced, PeerLost, ConfigError, StorageError)}
# absl::StatusCode, where it says more than the kind.
_BY_CODE: dict[int, type[Error]] = {3: ConfigError, 9: ConfigError, 11: JobDone, 16: ConfigError}


def check(error: int | None) -> None:
    """Raises what a function of the library has returned; takes it over."""
    if error is None:
        return
    kind, code = library.error_kind(error), library.error_code(error)
    cls: type[Error] = _BY_CODE.get(code) or _BY_KIND.get(kind, Error)
    raised = cls(library.error_message(error).decode(errors="replace"))
    if cls is Error:
        raised.exit_code, raised.kind = library.error_exit_code(error), kind
    library.free_error(error)
    raise raised


def made(function: Callable[..., int | None], *arguments: Any) -> int:
    """The handle that a function of the library makes."""
    handle = ctypes.c_void_p()
    check(function(*arguments, ctypes.byref(handle)))
    return handle.value or 0
