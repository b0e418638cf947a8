"""Dtypes by the bits of an element, and what is used in place of one that a chip lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from vllm_adapter.errors import InputError

if TYPE_CHECKING:
    from vllm_adapter.contract.capability import Capability

BITS: Final[Mapping[str, int]] = {
    "float64": 64,
    "float32": 32,
    "tfloat32": 32,
    "float16": 16,
    "bfloat16": 16,
    "float8_e4m3fn": 8,
    "float8_e4m3fnuz": 8,
    "float8_e5m2": 8,
    "float8_e5m2fnuz": 8,
    "float4_e2m1fn": 4,
    "int64": 64,
    "int32": 32,
    "int8": 8,
    "uint8": 8,
    "int4": 4,
}
"""Bits of one element."""
SHORT: Final[Mapping[str, str]] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I8": "int8",
    "U8": "uint8",
}
"""safetensors' words.

# upstream: safetensors@0.8.0 safetensors/src/tensor.rs: Dtype
"""


def bytes_of(elements: int, dtype: str) -> int:
    """Bytes of that many elements, whole."""
    return -(-elements * BITS[dtype] // 8)


def named(word: str) -> str:
    """A dtype of a config ("torch.bfloat16", "half") by its own name.

    Raises:
        InputError: it is none that is known here.
    """
    short = {"half": "float16", "float": "float32", "bf16": "bfloat16", "fp16": "float16"}
    name = word.removeprefix("torch.")
    name = short.get(name, name)
    if name not in BITS:
        raise InputError(
            f"the dtype {word!r} is not known", hint=f"the dtypes are: {', '.join(BITS)}"
        )
    return name


def lost_to_arch(capability: Capability, feature: str) -> tuple[str | None, str, str]:
    """(dtype in place of `feature`, pointer, reason); (None, "", "") where the chip has it.

    What a descriptor does not say is no loss.
    """
    numerics, identity = capability.numerics, capability.identity
    name = identity.name or identity.arch
    half = "float16" if numerics.native_bfloat16 is False else "bfloat16"
    if feature.startswith("float8_e4m3") and numerics.native_fp8 is False:
        return half, "/numerics/native_fp8", f"{name} multiplies no eight-bit floats"
    if feature == "float4_e2m1fn" and numerics.native_fp4 is False:
        to = half
        if numerics.native_fp8 and numerics.fp8_flavour:
            to = f"float8_{numerics.fp8_flavour}"
        return to, "/numerics/native_fp4", f"{name} multiplies no four-bit floats"
    if feature == "bfloat16" and numerics.native_bfloat16 is False:
        return "float16", "/numerics/native_bfloat16", f"{name} does not compute bfloat16"
    unit = capability.compute_units.get(feature)
    if unit is not None and unit.emulated:
        return half, f"/compute_units/{feature}/emulated", f"{name} emulates {feature}"
    return None, "", ""
