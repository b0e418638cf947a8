"""Weights in fewer bits: how they are made of a checkpoint's, and what they stand for.

int8 and the floats of eight bits have one scale a row (output); int4 has a scale and a zero point
for each `INT4_GROUP` weights along the inputs, and two values a byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from vllm_adapter.contract.operators import INT4_GROUP, SCHEMES
from vllm_adapter.engine.ops.generic.quantized import unpacked
from vllm_adapter.errors import InputError

_LEVELS: Final = 15
_ROWS_AT_ONCE: Final = 4096
"""Of a weight that is unpacked in float32: a whole head would need gigabytes."""


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A weight [out, in] in fewer bits, as `quantized_linear` takes it."""

    scheme: str
    values: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor | None
    in_features: int

    @property
    def nbytes(self) -> int:
        """Bytes of values, scales and zero points."""
        zeros = 0 if self.zero is None else self.zero.nbytes
        return self.values.nbytes + self.scale.nbytes + zeros

    def dequantized(self) -> torch.Tensor:
        """float32[out, in]: what the values stand for."""
        if self.zero is None:
            return self.values.float() * self.scale
        wide = unpacked(self.values, self.in_features).float()
        scale, zero = (
            t.repeat_interleave(INT4_GROUP, 1)[:, : self.in_features]
            for t in (self.scale, self.zero)
        )
        return wide * scale + zero


def quantize_weight(
    weight: torch.Tensor, scheme: str, *, fp8_max: float | None = None
) -> QuantizedWeight:
    """A weight [out, in] of any float dtype in a scheme of `contract.operators.SCHEMES`.

    Values are rounded to the nearest. `fp8_max` is the largest value of a float of eight bits
    that the chip may use, where that is less than the format's own.

    Raises:
        InputError: the weight holds what is no finite number, or there is no such scheme.
    """
    if scheme not in SCHEMES:
        raise InputError(
            f"there is no scheme {scheme!r}", hint=f"the schemes are: {', '.join(SCHEMES)}"
        )
    if not bool(weight.isfinite().all()):
        raise InputError(
            "a weight that is to be quantised holds what is no finite number",
            hint="check the checkpoint's file, or load it in another dtype",
        )
    parts = [_quantize(rows, scheme, fp8_max) for rows in torch.split(weight, _ROWS_AT_ONCE)]
    values, scale, zero = (
        None if part[0] is None else torch.cat([p for p in part if p is not None])
        for part in zip(*parts, strict=True)
    )
    assert values is not None and scale is not None
    return QuantizedWeight(scheme, values, scale, zero, weight.shape[1])


def _quantize(
    weight: torch.Tensor, scheme: str, fp8_max: float | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Values, scale and zero point of some rows [rows, in]."""
    wide = weight.float()
    if scheme == "int4":
        return _quantize_int4(wide)
    most, dtype = 127.0, torch.int8
    if scheme != "int8":
        dtype = getattr(torch, scheme)
        most = min(torch.finfo(dtype).max, fp8_max or torch.inf)
    scale = _not_zero(wide.abs().amax(1, keepdim=True) / most)
    scaled = (wide / scale).clamp(-most, most)
    return (scaled.round() if scheme == "int8" else scaled).to(dtype), scale, None


def _quantize_int4(wide: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, width = wide.shape
    groups = -(-width // INT4_GROUP)
    # The last value fills the last group, so that its ends stay what they are.
    padded = torch.cat([wide, wide[:, -1:].expand(rows, groups * INT4_GROUP - width)], 1)
    grouped = padded.view(rows, groups, INT4_GROUP)
    zero, highest = grouped.amin(2), grouped.amax(2)
    scale = _not_zero((highest - zero) / _LEVELS)
    levels = ((grouped - zero[..., None]) / scale[..., None]).round().clamp(0, _LEVELS)
    flat = levels.to(torch.uint8).view(rows, -1)[:, : width + width % 2]
    return flat[:, 0::2] | flat[:, 1::2] << 4, scale, zero


def _not_zero(scale: torch.Tensor) -> torch.Tensor:
    """A scale by which one can divide: rows of zeros have none of their own."""
    return torch.where(scale > 0, scale, torch.ones_like(scale))
