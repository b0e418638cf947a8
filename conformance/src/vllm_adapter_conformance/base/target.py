"""What is certified: one adapter, its descriptor and one device, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.contract.capability import Capability
from vllm_adapter.discovery.adapter import Adapter
from vllm_adapter.discovery.records import AdapterRecord, DeviceRecord, Status
from vllm_adapter.errors import NoSuchDevice
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter.settings import Settings
from vllm_adapter_conformance.base.emulation import Emulator, open_emulated

if TYPE_CHECKING:
    from vllm_adapter.engine.device import OpenDevice

BUDGET_S: Final = 28.0
"""Seconds of one core for drawn cases where nobody asks for more or less."""


@dataclass(frozen=True)
class Target:
    """One run's subject. Without a device only L0 can be judged.

    `capability` is what `Adapter.capability` gives (the descriptor refined with live values, or
    VA_CAPABILITY's file); None without a device.
    """

    record: AdapterRecord
    host: HostFacts
    capability: Capability | None
    device: DeviceRecord | None
    seed: int = 0
    budget: float = BUDGET_S
    """Seconds that the drawn cases of all operators may take, by estimate."""
    emulator: Emulator | None = None
    """Whose C library stands in for the device."""
    minutes: float | None = None
    """How long L5's load runs; None: as long as the level asks for."""
    baseline: Path | None = None
    """The certificate against which L5's speeds are held."""

    def to_json(self) -> dict[str, Any]:
        """JSON for the worker, which builds the same target without probing again."""
        return {
            "record": self.record.to_json(),
            "host": self.host.to_json(),
            "device": None if self.device is None else self.device.index,
            "seed": self.seed,
            "budget": self.budget,
            "emulator": None if self.emulator is None else self.emulator.to_json(),
            "minutes": self.minutes,
            "baseline": None if self.baseline is None else str(self.baseline),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Target:
        """Builds it; the descriptor is read from its file again."""
        record = AdapterRecord.from_json(raw["record"])
        host, emulator = HostFacts.from_json(raw["host"]), raw["emulator"]
        target = with_device(record, host, raw["device"], int(raw["seed"]))
        return replace(
            target,
            budget=float(raw["budget"]),
            emulator=emulator and Emulator.from_json(emulator),
            minutes=raw["minutes"],
            baseline=raw["baseline"] and Path(raw["baseline"]),
        )

    @property
    def emulated(self) -> bool:
        """Whether the manifest says that the device is emulated."""
        return self.record.manifest is not None and self.record.manifest.emulated


def with_device(record: AdapterRecord, host: HostFacts, index: int | None, seed: int) -> Target:
    """A target with the device of that index, if any.

    Raises:
        NoSuchDevice: the adapter has no such device.
    """
    if index is None:
        return Target(record, host, None, None, seed)
    device = next((d for d in record.devices if d.index == index), None)
    if device is None:
        count = len(record.devices)
        what = f"there are {count}" if count else "it brings kernels only"
        raise NoSuchDevice(
            f"adapter {record.name} has no device {index}: {what}",
            hint="`vllm-adapter list --probe` shows the devices; L0 needs none",
        )
    assert record.status is Status.OK
    capability = Adapter(record).capability(device, Settings.from_environ())
    return Target(record, host, capability, device, seed)


def open_from_json(target: Mapping[str, Any]) -> OpenDevice:
    """As `open_emulated`, in a process that gets the target as JSON."""
    return open_emulated(Target.from_json(target))
