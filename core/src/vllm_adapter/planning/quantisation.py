"""A checkpoint's `quantization_config` as a packing: FP8, compressed-tensors, AWQ, GPTQ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from vllm_adapter.errors import InputError
from vllm_adapter.planning.tensors import WeightPacking

METHODS: Final = ("fp8", "compressed-tensors", "awq", "gptq")


def packing_of(config: Mapping[str, Any], dtype: str) -> WeightPacking | None:
    """What the config says of quantisation; None where it says nothing. `dtype`: the model's.

    Raises:
        InputError: a method or a form whose bytes are not known here.
    """
    found = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(found, Mapping):
        return None
    method = str(found.get("quant_method", "")).lower()
    try:
        if method == "fp8":
            return _fp8(found)
        if method in ("awq", "gptq"):
            return _groups(found, method)
        if method == "compressed-tensors":
            return _compressed(found, dtype)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(
            f"the quantization_config of method {method} cannot be read: {error!r}",
            hint="plan the model without it, as its base model has it",
        ) from None
    raise InputError(
        f"how {method or 'its quantization_config'} packs weights is not known here",
        hint=f"known methods: {', '.join(METHODS)}; or plan the base model",
    )


def _fp8(found: Mapping[str, Any]) -> WeightPacking:
    block = found.get("weight_block_size")
    high, wide = (int(block[0]), int(block[1])) if block else (0, 0)
    ignored = tuple(map(str, found.get("modules_to_not_convert") or ()))
    return WeightPacking("fp8", "float8_e4m3fn", (high, wide), "float32", ignored=ignored)


def _groups(found: Mapping[str, Any], method: str) -> WeightPacking:
    bits = int(found.get("bits", found.get("w_bit", 4)))
    group = int(found.get("group_size", found.get("q_group_size", 128)))
    if bits not in (4, 8):
        raise ValueError(f"{bits} bits")
    return WeightPacking(
        method,
        f"int{bits}",
        (1, 0 if group < 0 else group),
        "float16",
        zeros=True,
        index=method == "gptq",
        ignored=tuple(map(str, found.get("modules_to_not_convert") or ())),
    )


def _compressed(found: Mapping[str, Any], dtype: str) -> WeightPacking:
    groups = list(found["config_groups"].values())
    if len(groups) != 1:
        raise ValueError(f"{len(groups)} groups of weights")
    weights = groups[0]["weights"]
    bits, kind, strategy = int(weights["num_bits"]), weights["type"], weights["strategy"]
    if kind == "float" and bits == 8:
        name = "float8_e4m3fn"
    elif kind == "int" and bits in (4, 8):
        name = f"int{bits}"
    else:
        raise ValueError(f"{kind} of {bits} bits")
    block = _shared(strategy, weights)
    packed = bits == 4 or found.get("format") == "pack-quantized"
    return WeightPacking(
        "compressed-tensors",
        name,
        block,
        dtype,
        zeros=not weights.get("symmetric", True),
        shape=packed,
        ignored=tuple(map(str, found.get("ignore") or ())),
    )


def _shared(strategy: str, weights: Mapping[str, Any]) -> tuple[int, int]:
    if strategy == "tensor":
        return 0, 0
    if strategy == "channel":
        return 1, 0
    if strategy == "group":
        return 1, int(weights["group_size"])
    block: Sequence[Any] = weights["block_structure"]
    if strategy == "block":
        return int(block[0]), int(block[1])
    raise ValueError(f"strategy {strategy}")
