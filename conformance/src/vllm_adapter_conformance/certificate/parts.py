"""The files that took part in a run: whose each is, and whether it is as it was installed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import vllm_adapter
import vllm_adapter_doctor
import vllm_adapter_schemas
import vllm_adapter_vendors
from vllm_adapter.discovery.records import AdapterRecord
from vllm_adapter_conformance.certificate import compiled, places
from vllm_adapter_conformance.certificate.records import (
    CACHE,
    Distributions,
    Hashes,
    closure,
    normal,
    place,
)

SUITE: Final = "vllm-adapter-conformance"
CORE: Final = "vllm-adapter-core"
OURS: Final[Mapping[str, Any]] = {
    CORE: vllm_adapter,
    "vllm-adapter-doctor": vllm_adapter_doctor,
    "vllm-adapter-schemas": vllm_adapter_schemas,
    "vllm-adapter-vendors": vllm_adapter_vendors,
}
"""The suite's own distributions beside itself, each with its package."""
OF_TORCH: Final = ("nvidia-ml-py", "amdsmi")
"""What torch imports where it is there, and does not require.
# upstream: pytorch@v2.13.0 torch/cuda/__init__.py:64"""
_FOLDER: Final = Path(__file__).parents[1]


@dataclass(frozen=True)
class Loaded:
    """Loaded files: by distribution and path in RECORD, of no distribution, and what is wrong."""

    by_distribution: Mapping[str, Mapping[str, str]]
    outside: Mapping[str, str]
    changed: tuple[str, ...]


@dataclass(frozen=True)
class Files:
    """The installed files of a run, by whom they belong to."""

    packages: Mapping[str, Path]
    """The folder of the package of the suite, of its own distributions and of the adapter."""
    environment: Distributions
    framework: frozenset[str]
    """Torch, pytest and what else the suite needs, which has no kernel of an adapter's."""
    hashes: Hashes = field(default_factory=Hashes)

    @classmethod
    def of(cls, record: AdapterRecord, hashes: Hashes | None = None) -> Files:
        """Reads every RECORD of this process's path."""
        found = packages(record)
        framework = closure([SUITE, *OF_TORCH], [SUITE, *OURS]) - found.keys()
        return cls(found, Distributions.read(), framework, hashes or Hashes())

    def changed(self) -> Iterator[str]:
        """What of the packages is not as it was installed, compiled files included."""
        for name, folder in self.packages.items():
            yield from _of_package(name, folder, self.environment, self.hashes)
            yield from compiled.faults_below(str(folder))

    def of_others(self, path: str) -> Iterator[str]:
        """The same for one file of any other distribution."""
        owner = self.environment.owners.get(path)
        if owner is not None and owner.name not in self.packages:
            fault = owner.fault(path, owner.recorded[path], self.hashes)
            yield from [fault] if fault else []
            if owner.name not in self.framework:
                yield from compiled.faults_of(path)

    def sort(self, files: Iterable[str]) -> Loaded:
        """Whose each of these loaded files is; those of system and framework are left out.

        Raises:
            OSError: one cannot be read.
        """
        found: dict[str, dict[str, str]] = {}
        outside: dict[str, str] = {}
        changed: list[str] = []
        for path in sorted({place(file) for file in files}):
            if places.is_generated(path):
                continue
            owner, package = self.environment.owners.get(path), self._package_of(path)
            name = package or (owner.name if owner else None)
            if name is None and places.is_system(path):
                continue
            real = places.existing(path)
            if real is None:
                changed.append(f"{path} was loaded and is gone")
            elif name is None:
                outside[real] = self.hashes.of(real)
                if places.is_python(real) or places.in_site(real):
                    changed.append(f"{real} was imported and is in no RECORD")
            elif name in self.framework:
                changed += self.of_others(path) if places.is_python(path) else ()
            elif package is not None:
                below = os.path.relpath(path, os.path.dirname(place(self.packages[package])))
                found.setdefault(name, {})[Path(below).as_posix()] = self.hashes.of(real)
            elif owner is not None:
                changed += self.of_others(path)
                found.setdefault(name, {})[owner.relative(path)] = self.hashes.of(real)
        return Loaded(found, outside, tuple(changed))

    def version(self, name: str) -> str:
        """The version of a distribution by its normalised name."""
        found = self.environment.by_name.get(name)
        return "unknown" if found is None else found.version

    def _package_of(self, path: str) -> str | None:
        for name, folder in self.packages.items():
            if path.startswith(place(folder) + os.sep):
                return name
        return None


def packages(record: AdapterRecord | None = None) -> dict[str, Path]:
    """The package's folder of the suite and of each of its own distributions, as imported.

    With a record, the adapter's too.
    """
    found = {SUITE: _FOLDER}
    found |= {name: Path(str(module.__file__)).parent for name, module in OURS.items()}
    if record is not None and record.path is not None:
        found[normal(record.distribution)] = record.path
    return found


def digests(folder: Path, hashes: Hashes | None = None) -> dict[str, str]:
    """SHA-256 of every file below a package's folder, by its path; __pycache__ is left out."""
    known = hashes or Hashes()
    return {
        file.relative_to(folder).as_posix(): known.of(str(file)) for file in sorted(_files(folder))
    }


def suite_digest() -> str:
    """SHA-256 over the digests of the suite's files."""
    return over(digests(_FOLDER))


def suite_version() -> str:
    """The version of the suite that is installed."""
    import importlib_metadata

    return str(importlib_metadata.version(SUITE))


def over(found: Mapping[str, str]) -> str:
    """SHA-256 over the digests of a package's files."""
    lines = [f"{digest}  {path}\n" for path, digest in found.items()]
    return sha256("".join(lines).encode()).hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    for file in folder.rglob("*"):
        if CACHE not in file.parts and file.is_file():
            yield file


def _of_package(
    name: str, folder: Path, environment: Distributions, hashes: Hashes
) -> Iterator[str]:
    """What of a distribution, and of its package as it is imported, is not as installed."""
    found = environment.by_name.get(normal(name))
    if found is None:
        yield f"{name} is no installed distribution"
        return
    yield from found.faults(hashes, environment.owners)
    below = place(folder) + os.sep
    if not found.editable and not any(path.startswith(below) for path in found.recorded):
        yield f"{folder} is imported, and the RECORD of {name} has no file there"
