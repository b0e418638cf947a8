"""Asks a function of a driver's library for a version; run as a program of its own.

A library that crashes or hangs costs this process alone. It imports nothing of ours, so that it
starts in a few milliseconds: `python -I -S _function_child.py LIBRARY FUNCTION` prints the number
that `int FUNCTION(int *number)` gives, 1000 times the major version plus 10 times the minor one,
as one JSON object; nothing where there is no such library or function.
"""

from __future__ import annotations

import ctypes
import json
import sys


def main(library: str, function: str) -> None:
    """Prints the answer."""
    number = ctypes.c_int()
    try:
        code = getattr(ctypes.CDLL(library), function)(ctypes.byref(number))
    except (OSError, AttributeError):
        return
    if code == 0:
        print(json.dumps({"number": number.value}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
