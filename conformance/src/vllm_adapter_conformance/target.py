"""What is certified: one adapter, its descriptor and one device, without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from vllm_adapter.adapter import Adapter
from vllm_adapter.capability import Capability
from vllm_adapter.errors import AdapterError, InputError, NoSuchDevice, SettingError
from vllm_adapter.host.facts import HostFacts
from vllm_adapter.records import AdapterRecord, DeviceRecord, Status
from vllm_adapter.registry import find, host_for, located, scan
from vllm_adapter.settings import Settings
from vllm_adapter_conformance.emulation import LEVEL, Emulator, emulated_record, emulator_of
from vllm_adapter_conformance.rule import MODELS, SERVING
from vllm_adapter_conformance.serving.installed import need_platform, need_vllm


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
    emulator: Emulator | None = None
    """Whose C library stands in for the device."""

    def to_json(self) -> dict[str, Any]:
        """JSON for the worker, which builds the same target without probing again."""
        return {
            "record": self.record.to_json(),
            "host": self.host.to_json(),
            "device": None if self.device is None else self.device.index,
            "seed": self.seed,
            "emulator": None if self.emulator is None else self.emulator.to_json(),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Target:
        """Builds it; the descriptor is read from its file again."""
        record = AdapterRecord.from_json(raw["record"])
        host, emulator = HostFacts.from_json(raw["host"]), raw["emulator"]
        target = _with_device(record, host, raw["device"], int(raw["seed"]))
        return replace(target, emulator=emulator and Emulator.from_json(emulator))

    @property
    def emulated(self) -> bool:
        """Whether the manifest says that the device is emulated."""
        return self.record.manifest is not None and self.record.manifest.emulated


def aim(
    name: str, level: str, *, device: int = 0, seed: int = 0, emulate: str | None = None
) -> Target:
    """The target of a run up to `level`. L0 neither probes the adapter nor needs its device.

    `emulate` is NAME or NAME:DESCRIPTOR: the adapter whose emulated device stands in, and which
    of this adapter's descriptors describes it; see `emulation`.

    Raises:
        AdapterError: no such adapter, or the level needs a device and it cannot be used.
        InputError: as the registry; a device or seed that is not a number from zero up; the level
            needs transformers or vLLM, which is not there, or not of the tested version; vLLM has
            no platform for the device.
    """
    for option, number in (("--device", device), ("--seed", seed)):
        if number < 0:
            raise InputError(f"{option} is a number from zero up", hint=f"try {option} 0")
    if emulate is not None and level != LEVEL:
        raise InputError(
            f"an emulated device can be certified up to {LEVEL}, and {level} was asked for",
            hint=f"--level {LEVEL} with --emulate, or leave out --emulate",
        )
    if level == "L0" and device:
        raise InputError("L0 opens no device", hint="leave out --device, or certify L1")
    if level >= MODELS and not find_spec("transformers"):
        raise InputError(
            f"{level} runs models of transformers, which is not installed",
            hint="pip install 'vllm-adapter-conformance[models]', or certify L2",
        )
    if level >= SERVING:
        need_vllm()
    settings = Settings.from_environ()
    if settings.ops:
        raise SettingError(
            "VA_OPS is set, and a certificate judges the adapter's own kernels",
            hint="unset VA_OPS",
        )
    records = scan(settings)
    host = host_for(records)
    if emulate is not None:
        lender, _, descriptor = emulate.partition(":")
        emulator = emulator_of(find(lender, settings, host), settings)
        record = emulated_record(
            _located(records, name, settings, host), emulator, descriptor or None
        )
        return replace(_with_device(record, host, device, seed), emulator=emulator)
    if level != "L0":
        record = find(name, settings, host)
        if level >= SERVING:
            need_platform(record, level)
        return _with_device(record, host, device, seed)
    found = _located(records, name, settings, host)
    if found.path is None:
        raise AdapterError(
            f"adapter {name} ({found.distribution} {found.version}) cannot be read: "
            f"{found.reason}",
            hint=found.next_step,
        )
    return Target(found, host, None, None, seed)


def _located(
    records: Sequence[AdapterRecord], name: str, settings: Settings, host: HostFacts
) -> AdapterRecord:
    """The installed adapter of that name, not probed."""
    found = next((r for r in located(records, host) if r.name == name), None)
    if found is None:
        find(name, settings, host)  # raises: what is missing, and how to get it
        raise AssertionError(f"{name} was installed while we looked")
    return found


def _with_device(record: AdapterRecord, host: HostFacts, index: int | None, seed: int) -> Target:
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
