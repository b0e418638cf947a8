"""How many weights a .gguf file holds: its header alone is read, in milliseconds."""

from __future__ import annotations

import math
from pathlib import Path

from vllm_adapter.errors import InputError
from vllm_adapter.planning.gguf_header import read_gguf


def weights(file: Path) -> int | None:
    """The elements of all tensors; None for what is no whole GGUF header of version 2 or 3."""
    try:
        return sum(math.prod(tensor.shape) for tensor in read_gguf(file).tensors)
    except InputError:
        return None  # the loader says what is wrong
