"""What is certified: one adapter, its descriptor and one device, without torch."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_adapter.capability import Capability
from vllm_adapter.host.facts import HostFacts
from vllm_adapter.records import AdapterRecord, DeviceRecord


@dataclass(frozen=True)
class Target:
    """One run's subject. Without a device only L0 can be judged.

    `capability` is what `Adapter.capability` gives (the descriptor refined with live values, or
    VA_CAPABILITY's file); None where it cannot be read, which L0 then fails.
    """

    record: AdapterRecord
    host: HostFacts
    capability: Capability | None
    device: DeviceRecord | None
    seed: int = 0
