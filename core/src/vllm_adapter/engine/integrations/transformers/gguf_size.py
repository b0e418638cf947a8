"""How many weights a .gguf file holds: its header alone is read, in milliseconds."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import BinaryIO, Final

MAGIC: Final = b"GGUF"
_STRING, _ARRAY = 8, 9
_WIDTHS: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of the plain value types."""


def weights(file: Path) -> int | None:
    """The elements of all tensors; None for what is no whole GGUF header of version 2 or 3."""
    try:
        with file.open("rb") as stream:
            return _count(stream)
    except (OSError, ValueError, struct.error, KeyError, OverflowError):
        return None  # the loader says what is wrong


def _count(stream: BinaryIO) -> int:
    if stream.read(4) != MAGIC or _number(stream, "<I") not in (2, 3):
        raise ValueError
    tensors, pairs = _number(stream, "<Q"), _number(stream, "<Q")
    for _ in range(pairs):
        _skip_string(stream)
        _skip(stream, _number(stream, "<I"))
    total = 0
    for _ in range(tensors):
        _skip_string(stream)
        dimensions = _number(stream, "<I")
        total += math.prod(_number(stream, "<Q") for _ in range(dimensions))
        _number(stream, "<I")
        _number(stream, "<Q")
    return total


def _skip(stream: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        _skip_string(stream)
    elif kind == _ARRAY:
        inner, count = _number(stream, "<I"), _number(stream, "<Q")
        if inner in _WIDTHS:
            stream.seek(_WIDTHS[inner] * count, 1)
            return
        for _ in range(count):
            _skip(stream, inner)
    else:
        stream.seek(_WIDTHS[kind], 1)


def _skip_string(stream: BinaryIO) -> None:
    stream.seek(_number(stream, "<Q"), 1)


def _number(stream: BinaryIO, form: str) -> int:
    found: int = struct.unpack(form, stream.read(struct.calcsize(form)))[0]
    return found
