"""What is known of an installed adapter: its status, the reason, its devices.

Plain data, below the modules that make it (`registry`) and use it (`adapter`, the commands).
No file is read, except that `from_json` reads the manifest again where one is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from vllm_adapter.contract.manifest import Manifest, read_manifest
from vllm_adapter.contract.reading import plain, revived
from vllm_adapter.files import bounded


class Status(Enum):
    """Whether an adapter can be used on this machine."""

    OK = "ok"
    """Its device answers, or it is a kernels-only adapter whose plug-in loads."""
    BROKEN = "broken"
    """A bad manifest, a failed import, a death or a hang in the probe."""
    INCOMPATIBLE = "incompatible"
    """It needs another release of core, of Python or of torch."""
    BLOCKED = "blocked"
    """VA_ADAPTERS denies it."""
    SHADOWED = "shadowed"
    """Another distribution's adapter of the same name is used."""
    ABSENT = "absent"
    """Installed, but its device is not on this machine."""


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """One schedulable device. `torch` is its name for torch, such as "cuda:0" or "cpu".

    `live` has a descriptor's own shape and holds what the `describe` hook read.
    """

    index: int
    torch: str
    name: str
    arch: str | None = None
    capability_file: Path | None = None
    live: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AdapterRecord:
    """One installed adapter. `status` is None while it matches but has not been probed.

    `reason` is a sentence, which only the statuses ok and None need not have; `next_step` is the
    command to run next, or empty. `manifest` and `path` (the package's folder) are None where
    unreadable.
    """

    name: str
    distribution: str
    version: str
    package: str
    status: Status | None = None
    reason: str = ""
    next_step: str = ""
    manifest: Manifest | None = None
    path: Path | None = None
    editable: bool = False
    requires_torch: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    devices: tuple[DeviceRecord, ...] = ()

    @property
    def status_text(self) -> str:
        """The status as shown to people."""
        return "not probed" if self.status is None else self.status.value

    def has_run(self, device: DeviceRecord) -> bool | None:
        """Whether the manifest says that a device's descriptor has run on hardware."""
        tested = None if self.manifest is None else self.manifest.tested_on
        if tested is None or device.capability_file is None:
            return None
        return device.capability_file.stem in tested

    def to_json(self) -> dict[str, Any]:
        """A JSON object for `--json` and for the probing child; `from_json` reads it back."""
        manifest = self.manifest
        raw = plain(replace(self, manifest=None))
        devices = zip(raw.pop("devices"), self.devices, strict=True)
        document = {
            "name": self.name,
            "vendor": None if manifest is None else manifest.vendor,
            **raw,
            "status": self.status_text,
            "manifest": None if manifest is None else str(manifest.path),
            "tested_on": None if manifest is None else plain(manifest.tested_on),
            "devices": [
                one | {"run_on_hardware": self.has_run(device)} for one, device in devices
            ],
        }
        found: dict[str, Any] = bounded(document)
        return found

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> AdapterRecord:
        """Builds the record and reads its manifest again (ManifestError if that changed).

        A raw object of another shape raises KeyError, TypeError or ValueError.
        """
        status, manifest = raw["status"], raw["manifest"]
        status = None if status == "not probed" else status
        record = revived({**raw, "status": status, "manifest": None}, cls)
        return (
            record if manifest is None else replace(record, manifest=read_manifest(Path(manifest)))
        )
