"""In which dtype `run` loads a model: its own, or the nearest that the adapter declares."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from vllm_adapter.contract.decision import OperatorEntry
from vllm_adapter.contract.operators import DTYPES, OPERATORS
from vllm_adapter.engine.integrations.transformers.load import locate
from vllm_adapter.errors import UnsupportedCase

NEEDED: Final = (
    "linear",
    "rms_norm",
    "fused_add_rms_norm",
    "rotary_embedding",
    "reshape_and_cache",
    "paged_attention",
    "silu_and_mul",
)
"""The operators of every decoder that is served."""
NEAREST: Final = ("float32", "bfloat16", "float16")
"""Where a model's own dtype is not declared: what loses least comes first."""
_IN_SAFETENSORS: Final = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}
_HEADER_LIMIT: Final = 100_000_000


def own_dtype(source: str) -> str:
    """The dtype of a model as it lies on this machine; of a GGUF file's unpacked weights float32.

    Raises:
        InputError: nothing is there, or it holds no model.
    """
    folder, gguf = locate(source)
    if gguf:
        return "float32"
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        named = config.get("dtype") or config.get("torch_dtype")
        if isinstance(named, str):
            return named.removeprefix("torch.")
        return _stored(sorted(folder.glob("*.safetensors")))
    except (OSError, ValueError, AttributeError, struct.error):
        return "float32"  # a folder that cannot be read, as the loader then says


def _stored(files: Sequence[Path]) -> str:
    """The dtype of the first floating tensor of the first file."""
    for file in files[:1]:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(min(length, _HEADER_LIMIT)))
        for name, tensor in header.items():
            if name != "__metadata__" and tensor.get("dtype") in _IN_SAFETENSORS:
                return _IN_SAFETENSORS[tensor["dtype"]]
    return "float32"


def declared(entries: Mapping[str, Iterable[OperatorEntry]], dtype: str) -> list[str]:
    """Those of the operators needed that an adapter's entries declare in a dtype."""
    return [op for op in NEEDED if _declares(entries, op, dtype)]


def choose(adapter: str, entries: Mapping[str, Iterable[OperatorEntry]], own: str) -> str:
    """The dtype that the adapter serves best: the model's own where it serves that no worse.

    Raises:
        UnsupportedCase: it declares none of the operators, in no dtype.
    """
    order = [own, *NEAREST] if own in DTYPES else list(NEAREST)
    best = max(order, key=lambda dtype: len(declared(entries, dtype)))
    if not declared(entries, best):
        raise UnsupportedCase(
            f"adapter {adapter} declares none of the operators that a model needs, in no dtype: "
            "core's portable torch code would run all of them",
            hint=f"declare {NEEDED[0]} and others in its descriptor, or ask for torch's code by "
            "--dtype float32",
        )
    return best


def _declares(entries: Mapping[str, Iterable[OperatorEntry]], op: str, dtype: str) -> bool:
    parts = (op, OPERATORS[op].composed_of)
    return any(
        entry.declares and dtype in entry.dtypes
        for name in parts
        if name
        for entry in entries.get(name, ())
    )
