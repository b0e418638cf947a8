"""Another vendor's runtime rules on an emulated device: `certify ascend --level L1 --emulate sim`.

The C library of an adapter whose manifest says `emulated` is made the torch device of the name
that the certified adapter's manifest has, and its own runtime hook, or core's runtime of that
name, works on it. So what it says and does is tried, and nothing of its chip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.contract.capability import load_capability
from vllm_adapter.contract.reading import plain, revived
from vllm_adapter.discovery.library_devices import library_file
from vllm_adapter.discovery.records import AdapterRecord, DeviceRecord, Status
from vllm_adapter.errors import AdapterError, InputError
from vllm_adapter.settings import Settings

if TYPE_CHECKING:
    from vllm_adapter.engine.device import OpenDevice
    from vllm_adapter_conformance.base.target import Target

LEVEL: Final = "L1"
"""The level that means something without the chip."""
TORCHS_OWN: Final = ("cpu", "cuda", "xpu", "mtia", "mps")
"""Device types inside torch, whose names no library can take."""


@dataclass(frozen=True, slots=True)
class Emulator:
    """Whose C library stands in for the chip. `devices` is how many it shows."""

    name: str
    distribution: str
    version: str
    library: Path
    devices: int

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back."""
        raw: dict[str, Any] = plain(self)
        return raw

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Emulator:
        """Builds it; a raw object of another shape raises ValueError."""
        return revived(raw, cls)

    def described(self) -> dict[str, str]:
        """As the certificate has it."""
        return {
            "name": self.name,
            "dist": self.distribution,
            "version": self.version,
            "library_sha256": sha256(self.library.read_bytes()).hexdigest(),
        }


def emulator_of(record: AdapterRecord, settings: Settings) -> Emulator:
    """An adapter, probed and ok, as the one that lends its library; VA_LIBRARY replaces that.

    Raises:
        InputError: its device is not emulated, or is no C library.
    """
    manifest = record.manifest
    library = library_file(manifest, settings) if manifest else None
    if manifest is None or not manifest.emulated or library is None:
        raise InputError(
            f"adapter {record.name} lends no device: its manifest names no C library, or does not "
            "say that it is emulated",
            hint="`--emulate sim` takes the simulated accelerator of vllm-adapter-sim",
        )
    count = len(record.devices)
    return Emulator(record.name, record.distribution, record.version, library, count)


def emulated_record(
    record: AdapterRecord, emulator: Emulator, descriptor: str | None
) -> AdapterRecord:
    """The certified adapter as if its devices were here: as many as the emulator has.

    `descriptor` names the one that is used, by its file without .json; None: the first.

    Raises:
        AdapterError: the adapter cannot be read, or its device cannot be emulated.
        InputError: it has no such descriptor.
        CapabilityError: the descriptor cannot be read.
    """
    manifest = record.manifest
    if manifest is None:
        raise AdapterError(
            f"adapter {record.name} cannot be read: {record.reason}", hint=record.next_step
        )
    section = manifest.device
    why = None
    if section is None:
        why = "it brings no device"
    elif section.library is not None:
        why = "its device is a C library already, which VA_LIBRARY replaces"
    elif section.torch_type in TORCHS_OWN:
        why = f"{section.torch_type} is a device inside torch, and no library can take its name"
    if section is None or why is not None:
        raise AdapterError(
            f"adapter {record.name} cannot be emulated: {why}",
            hint="leave out --emulate, on a machine with the device",
        )
    files = {file.stem: file for file in manifest.capability_files()}
    if descriptor is not None and descriptor not in files:
        raise InputError(
            f"adapter {record.name} has no descriptor {descriptor}",
            hint=f"it has {', '.join(files) or 'none'}",
        )
    stem = descriptor or next(iter(files), None)
    if stem is None:
        raise AdapterError(
            f"adapter {record.name} has no descriptor", hint="L0 shows what is missing"
        )
    arch = load_capability(files[stem]).identity.arch
    devices = tuple(
        DeviceRecord(
            i, f"{section.torch_type}:{i}", name=arch, arch=arch, capability_file=files[stem]
        )
        for i in range(emulator.devices)
    )
    return replace(record, status=Status.OK, reason="", next_step="", devices=devices)


def open_emulated(target: Target) -> OpenDevice:
    """Opens the target's device on the emulator's library. The vendor's torch module stays out.

    Raises:
        AdapterError: torch's place is taken, or the adapter's hook gives no runtime.
        LibraryError: the emulator's library cannot be used.
    """
    import torch

    from vllm_adapter.discovery.adapter import Adapter
    from vllm_adapter.discovery.probe.library import open_library
    from vllm_adapter.engine.device import OpenDevice
    from vllm_adapter.engine.ops.providers import PROVIDERS
    from vllm_adapter.engine.runtime import FrameworkRuntime, RuntimeAdapter
    from vllm_adapter.engine.runtime.device_from_clib import enable

    record, device, capability = target.record, target.device, target.capability
    assert target.emulator is not None and device is not None and capability is not None
    kind = device.torch.partition(":")[0]
    enable(kind, open_library(target.emulator.library), Settings.from_environ())
    adapter = Adapter(record)
    runtime = adapter.call("open_runtime", device=device.torch, capability=capability)
    if runtime is None:
        runtime = FrameworkRuntime(kind)
    if not isinstance(runtime, RuntimeAdapter):
        raise AdapterError(
            f"adapter {record.name}: its hook `open_runtime` gave {type(runtime)!r}",
            hint="return an instance of vllm_adapter.engine.runtime.RuntimeAdapter",
        )
    PROVIDERS.use(record.name, capability, device.torch)
    return OpenDevice(adapter, device, capability, runtime, torch.device(device.torch))
