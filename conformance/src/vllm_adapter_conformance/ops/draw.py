"""Seeded random tensors on the host, for samples."""

from __future__ import annotations

import hashlib

import torch

from vllm_adapter.engine.ops.spec import Facts
from vllm_adapter_conformance.ops.trial import Put


class Draw:
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


def columns(put: Put, wide: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """A view of some columns of a wider tensor: not contiguous, on the device too.

    wide: [..., width] -> [..., stop - start].
    """
    return put(wide)[..., start:stop]
