"""Counts of calls by operator and provider, in a file for each process.

vLLM ends its workers by force, so that no handler at exit would run: each count is written as
it is made. The folder is VA_COUNTERS; without it nothing is wrapped and nothing is counted.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from vllm_adapter.engine.ops.spec import Fn
from vllm_adapter.errors import InputError
from vllm_adapter.settings import Settings

SUFFIX: Final = ".counts"
_DIGITS: Final = 15

Key = tuple[str, str]
"""An operator and the provider that ran it."""


@dataclass(frozen=True, slots=True)
class ProcessCounts:
    """What one process ran."""

    process: str
    """The name that the process has in vLLM, such as `EngineCore` or `MainProcess`."""
    pid: int
    calls: Mapping[Key, int]


def counted(op: str, provider: str, run: Fn) -> Fn:
    """`run`, counted at each call; `run` itself where nothing is counted.

    While a compiler traces, the call is traced as if it were not counted: a graph runs what it
    captured, and what it captured is not counted.
    """
    folder = Settings.from_environ().counters
    if folder is None:
        return run

    @functools.wraps(run)
    def call(*args: Any) -> Any:
        if not torch.compiler.is_compiling():
            _count((op, provider), folder)
        return run(*args)

    return call


def read_counts(folder: Path) -> list[ProcessCounts]:
    """What each process wrote into a folder, in order of the files' names.

    Raises:
        InputError: a file there is none of ours.
    """
    return [_read(path) for path in sorted(folder.glob(f"*{SUFFIX}"))]


def _read(path: Path) -> ProcessCounts:
    head, _, tail = path.stem.rpartition("-")
    calls: dict[Key, int] = {}
    try:
        for line in path.read_text("ascii").splitlines():
            number, op, provider = line.split()
            calls[op, provider] = int(number)
        return ProcessCounts(head, int(tail), calls)
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} holds no counts of calls: {error}",
            hint="name the folder that VA_COUNTERS named when vLLM ran",
        ) from None


@dataclass(slots=True)
class _DeviceCounters:
    count: int
    offset: int


class _File:
    """The file of this process; a line is `count operator provider`, the count padded."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = multiprocessing.current_process().name.replace("/", "_").replace(" ", "_")
        path = folder / f"{name}-{os.getpid()}{SUFFIX}"
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        self.entries: dict[Key, _DeviceCounters] = {}
        self.end = 0

    def add(self, key: Key) -> None:
        entry = self.entries.get(key)
        if entry is None:
            entry = self.entries[key] = _DeviceCounters(0, self.end)
            line = f"{0:0{_DIGITS}d} {key[0]} {key[1]}\n".encode("ascii")
            self.end += os.pwrite(self.file, line, self.end)
        entry.count += 1
        os.pwrite(self.file, f"{entry.count:0{_DIGITS}d}".encode("ascii"), entry.offset)


_files: Final[dict[Path, _File]] = {}
os.register_at_fork(after_in_child=_files.clear)  # a child has a file of its own


def _count(key: Key, folder: Path) -> None:
    found = _files.get(folder)
    if found is None:
        found = _files[folder] = _File(folder)
    found.add(key)
