"""How long the load of L5 has to run, and how long it was asked to."""

from __future__ import annotations

from typing import Final

from vllm_adapter_conformance.base.target import Target

ON_A_DEVICE: Final = 30.0
ON_A_CPU: Final = 10.0
"""Minutes; also where the device is emulated, which a CPU does."""


def minutes_needed(target: Target) -> float:
    """What the level asks for on this device."""
    on_cpu = target.device is not None and target.device.torch.partition(":")[0] == "cpu"
    return ON_A_CPU if on_cpu or target.emulated else ON_A_DEVICE


def minutes_asked(target: Target) -> float:
    """What was asked for; without a wish, what is needed."""
    return minutes_needed(target) if target.minutes is None else target.minutes
