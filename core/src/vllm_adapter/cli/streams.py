"""The command line's standard streams, where closed, full or narrow; and Python's warnings."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from vllm_adapter.cli.output import warn
from vllm_adapter.errors import NewerFormat


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
