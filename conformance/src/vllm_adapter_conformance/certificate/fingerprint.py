"""Which files were tested: their digests as imported, and whether they are as installed."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import vllm_adapter
from vllm_adapter.settings import Settings

if TYPE_CHECKING:
    from vllm_adapter_conformance.base.target import Target

SUITE: Final = "vllm-adapter-conformance"
CORE: Final = "vllm-adapter-core"
_FOLDER: Final = Path(__file__).parents[1]


@dataclass(frozen=True)
class Fingerprint:
    """The adapter's and the suite's files. `dirty`: something is not as it was installed."""

    adapter: Mapping[str, str]
    suite_sha256: str
    core_sha256: str
    descriptor: tuple[str, str] | None
    """The descriptor's path and digest."""
    dirty: bool

    @classmethod
    def of(cls, target: Target) -> Fingerprint:
        """Reads all files now. An editable install, ours included, is dirty: it may change."""
        record = target.record
        assert record.path is not None
        settings = Settings.from_environ()
        return cls(
            adapter=digests(record.path),
            suite_sha256=suite_digest(),
            core_sha256=core_digest(),
            descriptor=_descriptor(target),
            dirty=record.editable
            or not _as_recorded(record.distribution, record.path)
            or any(_is_editable(name) for name in (SUITE, CORE))
            # What these name may say, or do, what no release of the adapter does.
            or settings.capability is not None
            or settings.library is not None,
        )


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a package's folder, by its path; compiled Python is left out."""
    return {
        file.relative_to(folder).as_posix(): sha256(file.read_bytes()).hexdigest()
        for file in sorted(_files(folder))
    }


def suite_digest() -> str:
    """SHA-256 over the digests of the suite's files."""
    return _digest_of(_FOLDER)


def core_digest() -> str:
    """SHA-256 over the digests of core's files: a descriptor may name kernels that are core's."""
    return _digest_of(Path(vllm_adapter.__file__).parent)


def _digest_of(folder: Path) -> str:
    lines = [f"{digest}  {path}\n" for path, digest in digests(folder).items()]
    return sha256("".join(lines).encode()).hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    for file in folder.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".pyc":
            yield file


def _descriptor(target: Target) -> tuple[str, str] | None:
    if target.capability is None:
        return None
    path, package = Path(target.capability.origin), target.record.path
    digest = sha256(path.read_bytes()).hexdigest()
    inside = package is not None and path.is_relative_to(package)
    return (path.relative_to(package).as_posix() if inside and package else str(path)), digest


def _as_recorded(distribution: str, folder: Path) -> bool:
    """Whether the files of a folder are those of the distribution's RECORD, no more, no fewer."""
    recorded = {
        Path(str(file.locate())).resolve(): file.hash
        for file in _installed(distribution).files or ()
        if file.hash is not None and file.hash.mode == "sha256"
    }
    found = {file.resolve() for file in _files(folder)}
    expected = {file for file in recorded if file.is_relative_to(folder.resolve())}
    return (
        bool(found)
        and found == {file for file in expected if "__pycache__" not in file.parts}
        and all(_urlsafe(file) == recorded[file].value for file in found)
    )


def _urlsafe(file: Path) -> str:
    return base64.urlsafe_b64encode(sha256(file.read_bytes()).digest()).rstrip(b"=").decode()


def _is_editable(distribution: str) -> bool:
    origin = _installed(distribution).origin
    return bool(getattr(getattr(origin, "dir_info", None), "editable", False))


def _installed(distribution: str) -> Any:
    import importlib_metadata

    return importlib_metadata.distribution(distribution)
