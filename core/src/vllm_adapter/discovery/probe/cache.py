"""Keeps the answers of probes between processes: one small JSON file for each adapter.

An answer is good while nothing of its key has changed: the distribution, the adapter's files, its
C library, Python, torch, the boot, the PCI devices, what this process may use of the machine, and
the variables that hide devices or libraries. A folder that cannot be written means no cache; a
file that cannot be read is as good as none.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from vllm_adapter.discovery.library_devices import library_file
from vllm_adapter.discovery.records import AdapterRecord
from vllm_adapter.files import PACKAGE_BYTES, read_bounded
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter.settings import Settings

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_HIDING: Final = ("_VISIBLE_DEVICES", "_VISIBLE_MODULES", "_DEVICE_SELECTOR", "_AFFINITY_MASK")
_MAX_FILES: Final = 10_000
"""Files of a package that are looked at; what a larger one changes may go unseen."""
_LIBRARIES: Final = "LD_LIBRARY_PATH"


def folder() -> Path | None:
    """Where the answers are kept; None if this user has no home."""
    from platformdirs import user_cache_path

    try:
        found = user_cache_path("vllm-adapter")
    except RuntimeError:
        return None
    return found if found.is_absolute() else None  # some releases take a relative variable


def load(record: AdapterRecord, host: HostFacts) -> Mapping[str, Any] | None:
    """The kept answer for this adapter on this host, or None."""
    file = _file(record)
    try:
        kept = json.loads(file.read_bytes()) if file else None
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(kept, dict) or kept.get("key") != _key(record, host):
        return None
    answer = kept.get("answer")
    return answer if isinstance(answer, dict) else None


def store(record: AdapterRecord, host: HostFacts, answer: Mapping[str, Any]) -> None:
    """Keeps an answer, in one step; does nothing where the folder cannot be written."""
    file = _file(record)
    if file is None:
        return
    text = json.dumps({"key": _key(record, host), "answer": answer}, indent=1)
    draft = file.with_suffix(f".{os.getpid()}.tmp")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)
    except OSError:
        with suppress(OSError):  # the draft, if it was made at all
            draft.unlink(missing_ok=True)


def _file(record: AdapterRecord) -> Path | None:
    """One file for an adapter and an environment: two environments do not evict each other."""
    from hashlib import sha256

    base = folder()
    place = sha256(f"{sys.prefix}\0{record.path}".encode()).hexdigest()[:12]
    return base and base / f"probe-{record.name}-{place}.json"


def _key(record: AdapterRecord, host: HostFacts) -> dict[str, Any]:
    torch = host.torch
    return {
        "distribution": f"{record.distribution} {record.version}",
        "files": _digest(record),
        "library": _library(record),
        "python": sys.version,
        "torch": None if torch is None else torch.version,
        "boot": _boot_id(),
        "pci": [f"{pci} {pci.driver}" for pci in host.pci],
        "allowed": f"{host.cpuset} {host.cgroup}",
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.endswith(_HIDING) or name == _LIBRARIES
        },
    }


def _digest(record: AdapterRecord) -> str:
    from hashlib import sha256

    digest = sha256()
    for file in _files(record):
        content = _content(file)
        digest.update(f"{file}\0{len(content)}\0".encode(errors="surrogateescape"))
        digest.update(content)
    return digest.hexdigest()


def _content(file: Path) -> bytes:
    """The file's content; of one that is too large, and of what is no file, its state."""
    try:
        return read_bounded(file, PACKAGE_BYTES)
    except OSError as error:
        problem = str(error.strerror)
    try:
        state = file.stat()
    except (OSError, ValueError):
        return problem.encode()
    return f"{problem} {state.st_size} {state.st_mtime_ns} {state.st_ino}".encode()


def _files(record: AdapterRecord) -> Iterator[Path]:
    if record.manifest is not None:
        yield record.manifest.path
        yield from record.manifest.capability_files()
    if record.path is not None:
        yield from sorted(itertools.islice(record.path.rglob("*.py"), _MAX_FILES))


def _library(record: AdapterRecord) -> str:
    """The C library by its place, size and time: it may be too large to be digested each time."""
    manifest = record.manifest
    file = library_file(manifest, Settings.from_environ()) if manifest else None
    if file is None:
        return ""
    try:
        state = file.stat()
    except OSError:
        return f"{file.absolute()} cannot be found"
    return f"{file.absolute()} {state.st_size} {state.st_mtime_ns}"


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:  # no such file outside Linux
        return ""
