"""Wrong kernels for the tests of `vllm-adapter bisect`, named in a descriptor."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def silu_without_a_tail(x: torch.Tensor) -> torch.Tensor:
    """The last eight columns stay zero."""
    gate, up = x.chunk(2, dim=-1)
    found = F.silu(gate) * up
    found[..., -8:] = 0
    return found


_seen: list[int] = []


def silu_wrong_from_its_third_call(x: torch.Tensor) -> torch.Tensor:
    """Right at first, in each process."""
    _seen.append(1)
    gate, up = x.chunk(2, dim=-1)
    found = F.silu(gate) * up
    return found if len(_seen) < 3 else 2 * found


def silu_raises(x: torch.Tensor) -> torch.Tensor:
    """No tile for it."""
    raise RuntimeError(f"no tile for {x.shape[-1]} columns")
