"""Which files were tested, read once beside the run, in the process that judges.

What the device's process has loaded, `Census` is told at the end.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vllm_adapter.settings import Settings
from vllm_adapter_conformance.certificate import compiled
from vllm_adapter_conformance.certificate.parts import CORE, SUITE, Files, digests, over, packages
from vllm_adapter_conformance.certificate.records import Hashes, files_below, normal, place
from vllm_adapter_conformance.certificate.start_up import start_up_code
from vllm_adapter_conformance.device_side.loaded import loaded_files
from vllm_adapter_conformance.judge.journal import Ran

if TYPE_CHECKING:
    from vllm_adapter_conformance.base.target import Target

MOST: Final = 50
"""Sentences that a certificate has about files that are not as installed."""
_State = Mapping[str, tuple[int, int, int, int]]


@dataclass(frozen=True)
class Tested:
    """One distribution that took part."""

    version: str
    files_sha256: str | None
    """Over the digests of all files of its package; None where only loaded files were read."""
    loaded: Mapping[str, str]
    """SHA-256 of the files that the device's process had loaded, by their paths in RECORD."""


@dataclass(frozen=True)
class Fingerprint:
    """Everything that was tested, and why it is no release where it is none."""

    adapter: Mapping[str, str]
    suite_sha256: str
    core_sha256: str
    descriptor: tuple[str, str] | None
    """The descriptor's path and digest."""
    changed: tuple[str, ...] = ()
    """One sentence for each thing that is not as it was installed."""
    distributions: Mapping[str, Tested] = field(default_factory=dict)
    outside: Mapping[str, str] = field(default_factory=dict)
    """Loaded files of no distribution and not the system's, by their absolute paths."""
    start_up: tuple[str, ...] = ()
    """Code that ran at the start of each process."""


class Census:
    """Reads the files of a run while it runs. `start` begins, `settle` waits and concludes."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._packages = packages(target.record)
        self._changed: list[str] = []
        self._start_up: list[str] = []
        self._files: Files | None = None
        self._problem: BaseException | None = None
        self._before: _State = {}
        self._thread = threading.Thread(target=self._guarded, daemon=True)

    def start(self) -> None:
        """Notes the state of all files at once, and reads them in a thread."""
        self._before = _state(self._packages.values())
        self._thread.start()

    def settle(self, ran: Ran) -> Fingerprint:
        """What was tested; `ran` is what the processes of the run had loaded.

        Raises:
            OSError: a file of the adapter or the suite cannot be read.
        """
        self._thread.join()
        if self._problem is not None:
            raise self._problem
        files = self._files
        assert files is not None
        found = files.sort(ran.files)
        changed = [*_replaced(), *self._changed, *ran.silent, *found.changed]
        changed += files.sort([*loaded_files(), *ran.judges]).changed
        after = _state(self._packages.values())
        changed += [
            f"{path} changed while the run lasted" for path in _unlike(self._before, after)
        ]
        for folder in self._packages.values():
            changed += compiled.faults_below(str(folder))  # the run may have written them
        whole = {name: digests(folder, files.hashes) for name, folder in self._packages.items()}
        parts = found.by_distribution
        names = [*whole, *(name for name in sorted(parts) if name not in whole)]
        return Fingerprint(
            adapter=whole[normal(self._target.record.distribution)],
            suite_sha256=over(whole[SUITE]),
            core_sha256=over(whole[CORE]),
            descriptor=_descriptor(self._target),
            changed=_first(changed),
            distributions={
                name: Tested(
                    files.version(name),
                    over(whole[name]) if name in whole else None,
                    dict(sorted(parts.get(name, {}).items())),
                )
                for name in names
            },
            outside=dict(sorted(found.outside.items())),
            start_up=tuple(self._start_up),
        )

    def _guarded(self) -> None:
        try:
            self._read()
        except BaseException as problem:  # it is the caller's, in the thread that waits
            self._problem = problem

    def _read(self) -> None:
        self._files = files = Files.of(self._target.record, Hashes())
        self._changed += files.changed()
        for module in named_modules(self._target):
            self._changed += files.of_others(module)
        for hook in start_up_code(files.environment, files.hashes):
            self._start_up.append(hook.said)
            self._changed += [hook.fault] if hook.fault else []


def named_modules(target: Target) -> Iterator[str]:
    """Files of the modules that the descriptor names, found without importing any."""
    operators = {} if target.capability is None else target.capability.operators
    dotted = {
        str(text).partition(":")[0]
        for entries in operators.values()
        for entry in entries
        for text in (entry.run, entry.plan, entry.prepare_weights)
        if text
    }
    for module in sorted(dotted):
        below = os.path.join(*module.split("."))
        for folder in filter(None, sys.path):
            for tail in (".py", f"{os.sep}__init__.py"):
                path = place(os.path.join(folder, below + tail))
                if os.path.isfile(path):
                    yield path


def _replaced() -> Iterator[str]:
    """What these settings may say, or do, no release of the adapter does."""
    settings = Settings.from_environ()
    if settings.capability is not None:
        yield "VA_CAPABILITY puts a descriptor in the place of the adapter's"
    if settings.library is not None:
        yield "VA_LIBRARY puts a library in the place of the adapter's"


def _descriptor(target: Target) -> tuple[str, str] | None:
    if target.capability is None:
        return None
    path, package = Path(target.capability.origin), target.record.path
    digest = sha256(path.read_bytes()).hexdigest()
    inside = package is not None and path.is_relative_to(package)
    return (path.relative_to(package).as_posix() if inside and package else str(path)), digest


def _state(folders: Iterable[Path]) -> _State:
    """What changes when a file does, whoever sets its time back."""
    found = {}
    for folder in folders:
        for path in files_below(str(folder)):
            state = os.lstat(path)
            found[path] = (state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
    return found


def _unlike(before: _State, after: _State) -> list[str]:
    return sorted(p for p in before.keys() | after.keys() if before.get(p) != after.get(p))


def _first(sentences: Iterable[str]) -> tuple[str, ...]:
    found = list(dict.fromkeys(sentences))
    if len(found) <= MOST:
        return tuple(found)
    return (*found[:MOST], f"{len(found) - MOST} more are not as installed")
