"""The command line's standard streams, where closed, full or narrow; and Python's warnings."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, cast

from vllm_adapter.cli.output import warn
from vllm_adapter.errors import NewerFormat

_STDOUT: Final = 1
_STDERR: Final = 2


def prepare() -> None:
    """Makes the streams such that printing raises only where stdout itself cannot be written."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # The lowest free descriptor is the closed stream's own: no later file can get it.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # open until the process ends
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # what the terminal's encoding lacks is printed escaped
            reconfigure(errors="backslashreplace")


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """What is printed meanwhile, by Python or by a C library, goes to stderr.

    So that stdout holds a command's document alone, whatever a vendor's code prints; also at the
    process's exit.
    """
    sys.stdout.flush()
    usual, kept = sys.stdout, os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        usual.flush()  # a module may have kept the stream itself
        ctypes.CDLL(None).fflush(None)  # what C's own buffers hold would come out later
        os.dup2(kept, _STDOUT)
        os.close(kept)
        sys.stdout = usual
        atexit.unregister(_rest_to_stderr)
        atexit.register(_rest_to_stderr)


def _rest_to_stderr() -> None:
    """Registered last, so run first at exit: before what a vendor's code prints there."""
    with suppress(OSError, ValueError):  # closed, or full, as was said by then
        sys.stdout.flush()
    os.dup2(_STDERR, _STDOUT)


def stdout_fails(error: OSError) -> bool:
    """Whether an error is that of printing: it names no file, and printing a line fails again."""
    if error.filename is not None:
        return False
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def drop_stdout() -> None:
    """The interpreter flushes stdout once more at exit, which would print a traceback."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def warnings_as_sentences() -> Iterator[None]:
    """Our own warnings look like all that the command line says, and each is said once."""
    usual, said = warnings.showwarning, set[str]()

    def show(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
        if not issubclass(category, NewerFormat):
            usual(message, category, *rest, **more)
        elif str(message) not in said:
            said.add(str(message))
            warn(str(message))

    warnings.showwarning = cast("Any", show)
    try:
        yield
    finally:
        warnings.showwarning = usual
