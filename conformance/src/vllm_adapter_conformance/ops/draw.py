"""Seeded random tensors on the host, for samples."""

from __future__ import annotations

import hashlib

import torch

from vllm_adapter.engine.ops.spec import Facts
from vllm_adapter_conformance.ops.trial import ToDevice


class RandomTensors:
    """A stream of random tensors that depends on its seed and labels alone."""

    def __init__(self, seed: int, *labels: object) -> None:
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
    if how == "transposed" and tensor.ndim > 1:
        return to_device(tensor.transpose(0, 1).contiguous()).transpose(0, 1)
    start, width = (0, 2 * last) if how == "strided" else (3, last + 3)
    memory = _beside((*tensor.shape[:-1], width), tensor.dtype)
    memory[..., start : start + last] = tensor
    return to_device(memory)[..., start : start + last]


def _beside(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    filler = torch.nan if dtype.is_floating_point else torch.iinfo(dtype).max
    return torch.full(shape, filler, dtype=dtype)
