"""The plain tensor work of a C library, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.errors import VllmAdapterError

if TYPE_CHECKING:
    import torch

    from vllm_adapter.engine.device_process.held import HeldDevice

Work = Callable[[Any, Any, Any, Any], Any]

WORK: Final[Mapping[str, tuple[str, Work]]] = {
    "copy": ("unary", lambda x, y, p, q: x.t().contiguous()),
    "abs": ("unary", lambda x, y, p, q: x.abs()),
    "add": ("binary", lambda x, y, p, q: x + y),
    "sub": ("binary", lambda x, y, p, q: x - y),
    "mul": ("binary", lambda x, y, p, q: x * y),
    "eq": ("binary", lambda x, y, p, q: x == y),
    "ne": ("binary", lambda x, y, p, q: x != y),
    "le": ("binary", lambda x, y, p, q: x <= y),
    "and": ("binary", lambda x, y, p, q: p & q),
    "or": ("binary", lambda x, y, p, q: p | q),
    "all": ("reduce", lambda x, y, p, q: p.all()),
    "fill": ("fill", lambda x, y, p, q: x.clone().fill_(3)),
}
"""By name: the function of the library, and the work on x, y and two masks. Results are exact."""


def worked(device: HeldDevice, *, name: str, given: Sequence[torch.Tensor]) -> torch.Tensor | str:
    """The work's result on the host, or the device's refusal. given: four of [2, 3]."""
    from vllm_adapter.engine.runtime.device_from_clib.enable import enabled
    from vllm_adapter.settings import Fallback

    there = [device.to_device(one) for one in given]
    backend = enabled()
    assert backend is not None  # the cases are of a C library's device
    policy, backend.policy = backend.policy, Fallback.ERROR
    try:
        result: torch.Tensor = WORK[name][1](*there)
        return result.cpu()
    except VllmAdapterError as error:
        return error.message
    finally:
        backend.policy = policy
