"""The header of a .gguf file: its metadata and its tensors, without numpy and without the data.

# upstream: ggml@2025-11 docs/gguf.md
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from vllm_adapter.errors import InputError

MAGIC: Final = b"GGUF"
_STRING, _ARRAY = 8, 9
_FORMS: Final = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_TYPES: Final[Mapping[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
}
"""(name, elements of a block, bytes of a block) by the number in the file."""
_MOST_TEXT: Final = 1 << 20
_MOST_ENTRIES: Final = 1 << 20
_MOST_DEEP: Final = 4


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor of the file; `shape` as the file has it, the fastest dimension first."""

    name: str
    shape: tuple[int, ...]
    type: str
    bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What stands before the data. An array of the metadata is its length alone."""

    metadata: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...]


def read_gguf(file: Path) -> GgufHeader:
    """The header of a file.

    Raises:
        InputError: no whole header of version 2 or 3, or a type of tensor that is not known.
    """
    try:
        with file.open("rb") as stream:
            return _header(stream)
    except OSError as problem:
        why = problem.strerror or str(problem)
    except (ValueError, struct.error, KeyError, OverflowError, MemoryError) as problem:
        why = f"it is no whole GGUF file of version 2 or 3 ({problem})"
    raise InputError(f"cannot read {file}: {why}", hint="give a whole .gguf file")


def _header(stream: BinaryIO) -> GgufHeader:
    if stream.read(4) != MAGIC or _number(stream, "<I") not in (2, 3):
        raise ValueError("its first bytes are others")
    tensors, pairs = _number(stream, "<Q"), _number(stream, "<Q")
    if max(tensors, pairs) > _MOST_ENTRIES:
        raise ValueError("it claims too many entries")
    metadata = {}
    for _ in range(pairs):
        key = _text(stream)
        metadata[key] = _value(stream, _number(stream, "<I"))
    return GgufHeader(metadata, tuple(_tensor(stream) for _ in range(tensors)))


def _tensor(stream: BinaryIO) -> GgufTensor:
    name = _text(stream)
    dimensions = _number(stream, "<I")
    if dimensions > 8:
        raise ValueError(f"{dimensions} dimensions")
    shape = tuple(_number(stream, "<Q") for _ in range(dimensions))
    kind, _ = _number(stream, "<I"), _number(stream, "<Q")
    if kind not in _TYPES:
        raise ValueError(f"the tensor {name[:60]} is of the unknown type {kind}")
    word, block, size = _TYPES[kind]
    return GgufTensor(name, shape, word, -(-math.prod(shape) // block) * size)


def _value(stream: BinaryIO, kind: int, depth: int = 0) -> Any:
    if kind == _STRING:
        return _text(stream)
    if kind != _ARRAY:
        return _number(stream, _FORMS[kind])
    inner, count = _number(stream, "<I"), _number(stream, "<Q")
    if depth > _MOST_DEEP:
        raise ValueError("its lists are nested too deeply")
    if inner in _FORMS:
        stream.seek(struct.calcsize(_FORMS[inner]) * count, 1)
    elif inner == _STRING:
        for _ in range(count):
            stream.seek(_number(stream, "<Q"), 1)
    else:
        for _ in range(count):
            _value(stream, inner, depth + 1)
    return count


def _text(stream: BinaryIO) -> str:
    size = _number(stream, "<Q")
    if size > _MOST_TEXT:
        raise ValueError(f"a text of {size} bytes")
    return stream.read(size).decode("utf-8", "replace")


def _number(stream: BinaryIO, form: str) -> Any:
    return struct.unpack(form, stream.read(struct.calcsize(form)))[0]
