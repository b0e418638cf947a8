"""Which devices have streams. Without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_adapter_conformance.base.target import Target


def has_streams(target: Target) -> bool:
    """Whether the device has streams at all; one that the CPU stands in for has none."""
    if target.device is not None:
        return target.device.torch.partition(":")[0] != "cpu"
    capability = target.capability
    return capability is None or capability.identity.torch_type != "cpu"
