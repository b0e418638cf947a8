"""Seeded random tensors on the host, for samples."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import torch

from vllm_adapter.engine.ops.spec import Facts
from vllm_adapter_conformance.ops.trial import ToDevice

CONTENTS: Final[Sequence[tuple[int, int]]] = ((0, 0), (1, 1), (2, 1), (2, 2))
"""Which numbers and which places `contents` 0 to 3 of a sample have.

From 1 to 2 the numbers change alone, from 2 to 3 the places, of which first and last stay.
"""
FUSED: Final = frozenset({"fused", "fused apart"})
"""Layouts of parts of one tensor."""


class RandomTensors:
    """A stream of random tensors that depends on its seed and labels alone."""

    def __init__(self, seed: object, *labels: object) -> None:
        digest = hashlib.sha256("/".join(map(str, (seed, *labels))).encode()).digest()
        self._generator = torch.Generator().manual_seed(int.from_bytes(digest[:7]))

    def normal(self, *shape: int, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
        """Values of a normal distribution, rounded to the dtype.

        Gives [*shape], on the host.
        """
        values = torch.randn(*shape, generator=self._generator, dtype=torch.float64)
        return (values * scale).to(dtype)

    def quick(self, *shape: int, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
        """As `normal`, at half the cost: drawn in float32."""
        values = torch.randn(*shape, generator=self._generator, dtype=torch.float32)
        return (values if scale == 1 else values * scale).to(dtype)

    def log_uniform(
        self, low: float, high: float, *shape: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """[*shape] of magnitudes between low and high, either sign."""
        share = torch.rand(*shape, generator=self._generator, dtype=torch.float32)
        sign = torch.randint(0, 2, shape, generator=self._generator) * 2 - 1
        return (sign * low * (high / low) ** share).to(dtype)

    def some(self, *shape: int) -> torch.Tensor:
        """bool, true for about one in eight."""
        return torch.randint(0, 8, shape, generator=self._generator) == 0

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """int64 values of [low, high).

        Gives int64 [*shape], on the host.
        """
        return torch.randint(low, high, shape, generator=self._generator)

    def permutation(self, count: int) -> torch.Tensor:
        """int64[count], each of range(count) once."""
        return torch.randperm(count, generator=self._generator)


def streams(op: str, seed: str, contents: int) -> tuple[RandomTensors, RandomTensors]:
    """The streams of a sample's numbers, and of its places (ids, slots, blocks, lengths)."""
    numbers, places = CONTENTS[contents]
    return RandomTensors(0, op, seed, numbers), RandomTensors(0, op, "places", seed, places > 0)


def in_order(draw: RandomTensors, count: int, limit: int, how: str) -> torch.Tensor:
    """int64[count] of range(limit), from a number on: `up`, `down`, `turned` or `equal`.

    None comes twice as long as there are as many, but where all are `equal`.
    """
    first = draw.integers(0, max(1, limit - count + 1), 1)
    if how == "equal":
        return first.repeat(count)
    found = (first + torch.arange(count)) % max(1, limit)
    if how == "down":
        return found.flip(0)
    if how == "turned" and count > 3:
        return torch.cat((found[:1], found[1:-1].flip(0), found[-1:]))
    return found


def middle_turned(places: torch.Tensor, contents: int) -> torch.Tensor:
    """places[n], for contents 3 in another order; the first and the last stay where they are."""
    if CONTENTS[contents][1] == 2 and len(places) > 3:
        places = torch.cat((places[:1], places[1:-1].roll(1).flip(0), places[-1:]))
    return places


def torch_dtype(facts: Facts) -> torch.dtype:
    """The torch dtype of a case."""
    found = getattr(torch, str(facts["dtype"]))
    assert isinstance(found, torch.dtype)
    return found


def columns(to_device: ToDevice, wide: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """A view of some columns of a wider tensor: not contiguous, on the device too.

    wide: [..., width] -> [..., stop - start].
    """
    return to_device(wide)[..., start:stop]


def laid(to_device: ToDevice, tensor: torch.Tensor, how: str) -> torch.Tensor:
    """The tensor on the device, laid out in that way; what lies beside it in memory is NaN.

    `how` is a member of a layout's dimension. Integers have the greatest number beside them.
    """
    if how == "plain" or not tensor.ndim:
        return to_device(tensor)
    last = tensor.shape[-1]
    if how == "offset":
        memory = _beside((tensor.numel() + 3,), tensor.dtype)
        memory[3:] = tensor.flatten()
        return to_device(memory)[3:].view(tensor.shape)
    if how == "every other":
        memory = _beside((*tensor.shape, 2), tensor.dtype)
        memory[..., 0] = tensor
        return to_device(memory)[..., 0]
    if how.startswith("transposed") and tensor.ndim > 1:
        turned = tensor.transpose(0, 1).contiguous()
        return laid(to_device, turned, how.partition(" ")[2] or "plain").transpose(0, 1)
    if how in FUSED:
        memory = _beside((tensor.shape[0], tensor.shape[1] + 3, last), tensor.dtype)
        memory[:, 1:-2] = tensor
        return to_device(memory)[:, 1:-2]
    start, width = (0, 2 * last) if how == "strided" else (3, last + 3)
    memory = _beside((*tensor.shape[:-1], width), tensor.dtype)
    memory[..., start : start + last] = tensor
    return to_device(memory)[..., start : start + last]


def laid_parts(
    to_device: ToDevice, parts: Sequence[torch.Tensor], layouts: Sequence[str]
) -> list[torch.Tensor]:
    """Queries, keys and values [T, heads, D], each in its own way; all fused are one tensor.

    Values that are `the keys` are that tensor, whatever numbers they have.
    """
    if layouts[-1] == "the keys":
        query, keys = laid_parts(to_device, parts[:-1], layouts[:-1])
        return [query, keys, keys]
    if FUSED.issuperset(layouts):
        tokens, _, size = parts[0].shape
        gap = _beside((tokens, int("fused apart" in layouts), size), parts[0].dtype)
        memory = to_device(torch.cat([one for part in parts for one in (part, gap)], 1))
        widths = [width for part in parts for width in (part.shape[1], gap.shape[1])]
        return [*torch.split(memory, widths, dim=1)[::2]]
    pairs = zip(parts, layouts, strict=True)
    return [laid(to_device, part.contiguous(), layout) for part, layout in pairs]


def _beside(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    filler = torch.nan if dtype.is_floating_point else torch.iinfo(dtype).max
    return torch.full(shape, filler, dtype=dtype)
