"""What is known of an installed adapter: its status, the reason, its devices.

Plain data, below the modules that make it (`registry`) and use it (`adapter`, the commands).
No file is read, except that `from_json` reads the manifest again where one is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from vllm_adapter.contract.manifest import Manifest, read_manifest
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

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back."""
        file = self.capability_file
        document: dict[str, Any] = {
            "index": self.index,
            "torch": self.torch,
            "name": self.name,
            "arch": self.arch,
            "capability_file": None if file is None else str(file),
            "live": dict(self.live),
        }
        found: dict[str, Any] = bounded(document)
        return found

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> DeviceRecord:
        """Builds the record; a raw object of another shape raises KeyError or TypeError."""
        file = raw["capability_file"]
        return cls(
            index=int(raw["index"]),
            torch=str(raw["torch"]),
            name=str(raw["name"]),
            arch=raw["arch"],
            capability_file=None if file is None else Path(file),
            live=dict(raw["live"]),
        )


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
        document: dict[str, Any] = {
            "name": self.name,
            "vendor": None if manifest is None else manifest.vendor,
            "distribution": self.distribution,
            "version": self.version,
            "package": self.package,
            "status": self.status_text,
            "reason": self.reason,
            "next_step": self.next_step,
            "manifest": None if manifest is None else str(manifest.path),
            "path": None if self.path is None else str(self.path),
            "editable": self.editable,
            "requires_torch": list(self.requires_torch),
            "evidence": list(self.evidence),
            "tested_on": None if manifest is None else _list(manifest.tested_on),
            "devices": [
                device.to_json() | {"run_on_hardware": self.has_run(device)}
                for device in self.devices
            ],
        }
        found: dict[str, Any] = bounded(document)
        return found

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> AdapterRecord:
        """Builds the record and reads its manifest again (ManifestError if that changed)."""
        status, manifest, path = raw["status"], raw["manifest"], raw["path"]
        return cls(
            name=raw["name"],
            distribution=raw["distribution"],
            version=raw["version"],
            package=raw["package"],
            status=None if status == "not probed" else Status(status),
            reason=raw["reason"],
            next_step=raw["next_step"],
            manifest=None if manifest is None else read_manifest(Path(manifest)),
            path=None if path is None else Path(path),
            editable=raw["editable"],
            requires_torch=tuple(raw["requires_torch"]),
            evidence=tuple(raw["evidence"]),
            devices=tuple(DeviceRecord.from_json(device) for device in raw["devices"]),
        )


def _list(values: tuple[str, ...] | None) -> list[str] | None:
    return None if values is None else list(values)
