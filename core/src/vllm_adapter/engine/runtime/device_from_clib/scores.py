"""What is asked of scores over a vocabulary: their logarithmic softmax, and the best few."""

from __future__ import annotations

from typing import Any, Final

import torch

from vllm_adapter.engine.runtime.device_from_clib.native import Native, NativeKernels, fit

aten: Final = torch.ops.aten
FEW: Final = 32
"""So many of the best are looked for one after the other; for more the host sorts."""


class Scores:
    """Operators that are made of several kernels, none of which has to be written for them."""

    def __init__(self, native: Native) -> None:
        self._native = native

    def parts(self) -> list[NativeKernels]:
        """The kernels of this file by operator, with the functions that they are made of."""
        return [
            NativeKernels(
                ("reduce", "binary", "unary", "fill"),
                {aten._log_softmax.out: self._log_softmax},
            ),
            NativeKernels(
                ("reduce", "binary", "unary", "fill", "gather", "where"),
                {aten.topk.values: self._topk},
            ),
        ]

    def _log_softmax(
        self, x: torch.Tensor, dim: int, half_to_float: bool, *, out: torch.Tensor
    ) -> Any:
        """x: [...] -> out: [...]; in float32 at the least, as torch has it."""
        if not x.dim() or not x.numel() or not x.dtype.is_floating_point:
            return NotImplemented
        wide = x if x.dtype == torch.float64 else self._native.copies.cast(x, torch.float32)
        shifted = wide - wide.amax(dim, keepdim=True)
        made = shifted - shifted.exp().sum(dim, keepdim=True).log()
        self._native.copies.on_device(made, fit(out, x.shape))
        return out

    def _topk(
        self,
        x: torch.Tensor,
        k: int,
        dim: int = -1,
        largest: bool = True,
        sorted: bool = True,
        *,
        values: torch.Tensor,
        indices: torch.Tensor,
    ) -> Any:
        """The k largest of x over `dim`, the best first, and their places.

        x: [..., length, ...] -> values and indices: [..., k, ...].
        """
        if not largest or not x.dim() or not x.numel() or not x.dtype.is_floating_point:
            return NotImplemented
        dim %= x.dim()
        if not 0 < k <= min(FEW, x.shape[dim]):
            return NotImplemented
        left, best, places = x, [], []
        line = [1] * x.dim()
        line[dim] = x.shape[dim]
        place = torch.arange(x.shape[dim], device=x.device).view(line)
        for _ in range(k):
            at = left.argmax(dim, keepdim=True)
            best.append(x.gather(dim, at))
            places.append(at)
            left = torch.where(place == at, -torch.inf, left)
        found = torch.cat(best, dim)
        if (found == -torch.inf).any().item():  # then the next best was found among the taken
            return NotImplemented
        copies = self._native.copies
        copies.on_device(found, fit(values, found.shape))
        copies.on_device(torch.cat(places, dim), fit(indices, found.shape))
        return values, indices
