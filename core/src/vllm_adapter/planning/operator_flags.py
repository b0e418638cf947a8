"""What an operator's own vLLM flags decide of a plan: they win, and the plan says so."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from vllm_adapter.errors import InputError
from vllm_adapter.planning.dtypes import BITS

FLAGS: Final[Mapping[str, str]] = {
    "--dtype": "dtype",
    "--kv-cache-dtype": "kv_dtype",
    "--block-size": "block_size",
    "--max-model-len": "context",
    "--max-num-seqs": "sequences",
    "--max-num-batched-tokens": "prefill_chunk",
    "--gpu-memory-utilization": "memory_share",
    "--kv-cache-memory-bytes": "kv_bytes",
    "--tensor-parallel-size": "tensor_parallel",
    "-tp": "tensor_parallel",
    "--pipeline-parallel-size": "pipeline_parallel",
    "-pp": "pipeline_parallel",
    "--data-parallel-size": "data_parallel",
    "-dp": "data_parallel",
    "--enforce-eager": "compile_mode",
    "--numa-bind": "numa",
}
"""vLLM's flag by the plan's key that it fixes.

# upstream: vllm@v0.32.0 vllm/engine/arg_utils.py
"""
SWITCHES: Final[Mapping[str, str]] = {"--enforce-eager": "eager", "--numa-bind": "yes"}
_WHOLE: Final = frozenset(
    {
        "block_size",
        "sequences",
        "prefill_chunk",
        "tensor_parallel",
        "pipeline_parallel",
        "data_parallel",
    }
)
_SCALES: Final = {"k": 1000, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_FP8: Final = {"fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "float8_e5m2"}
_HALVES: Final = {"half": "float16", "float": "float32"}


def own_values(flags: Sequence[str]) -> dict[str, str]:
    """The values by the plan's keys that a command line's flags fix. "auto" fixes nothing.

    Raises:
        InputError: a value that vLLM would not take either.
    """
    found: dict[str, str] = {}
    words = iter(flags)
    for word in words:
        flag, equals, value = (
            word.replace("_", "-").partition("=")
            if "=" in word
            else (
                word.replace("_", "-"),
                "",
                "",
            )
        )
        if flag not in FLAGS:
            continue
        if equals:
            value = word.partition("=")[2]
        elif flag in SWITCHES:
            value = SWITCHES[flag]
        else:
            value = next(words, "")
        checked = _checked(flag, FLAGS[flag], value)
        if checked is not None:
            found[FLAGS[flag]] = checked
    return found


def _checked(flag: str, key: str, value: str) -> str | None:
    bad = InputError(f"{flag} {value!r} is no value of it", hint="see `vllm serve --help`")
    if value == "" or value.startswith("--"):
        raise bad
    if value == "auto" or (key == "context" and value == "-1"):
        return None
    if key in ("context", "kv_bytes"):
        return str(_scaled(value, bad))
    if key in _WHOLE:
        if not value.isascii() or not value.isdigit() or not 1 <= int(value) < 1 << 40:
            raise bad
        return str(int(value))
    if key == "memory_share":
        try:
            share = float(value)
        except ValueError:
            raise bad from None
        if not (math.isfinite(share) and 0 < share <= 1):
            raise bad
        return str(share)
    if key == "kv_dtype":
        value = _FP8.get(value, value)
    elif key == "dtype":
        value = _HALVES.get(value, value)
    if key in ("kv_dtype", "dtype") and value != "fp8" and value not in BITS:
        raise bad
    return value


def _scaled(value: str, bad: InputError) -> int:
    scale = _SCALES.get(value[-1:], 1)
    digits = value[:-1] if value[-1:] in _SCALES else value
    try:
        number = float(digits) * scale
    except ValueError:
        raise bad from None
    if not (math.isfinite(number) and 1 <= number < 1 << 60):
        raise bad
    return int(number)
