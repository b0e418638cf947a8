"""Installed distributions by their RECORD: whose a file is, and whether it is as installed."""

from __future__ import annotations

import base64
import csv
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import file_digest
from pathlib import Path
from typing import Any, Final

from vllm_adapter.discovery.distributions import read_headers

STRONG: Final = ("sha256", "sha384", "sha512")
_UNHASHED: Final = ("RECORD", "RECORD.jws", "RECORD.p7s")
"""Files of a dist-info that a RECORD cannot have the hash of."""
_METADATA: Final = (".dist-info", ".data", ".egg-info")
CACHE: Final = "__pycache__"


def normal(name: str) -> str:
    """A distribution's name as all spell it alike."""
    return re.sub(r"[-_.]+", "-", name).lower()


def place(path: str | Path) -> str:
    """A file's absolute path with the links of its folders resolved, and its own kept.

    A folder that is a link leads elsewhere; a file may be one in a tool's store of wheels.
    """
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


class Hashes:
    """SHA-256 of files, each read once; and what their state was when they were."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, path: str) -> str:
        """The digest in hexadecimal digits.

        Raises:
            OSError: it cannot be read.
        """
        if path not in self._known:
            self._known[path] = digest_of(path, "sha256").hex()
        return self._known[path]


def digest_of(path: str, kind: str) -> bytes:
    """The file's digest, read in pieces.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        return file_digest(file, kind).digest()


@dataclass(frozen=True)
class Installed:
    """One distribution. `recorded` is by `place`: the kind of hash and its value, or None."""

    name: str
    version: str
    root: str
    """The folder that its paths are relative to."""
    info: str
    """Its folder of metadata."""
    editable: bool
    recorded: Mapping[str, tuple[str, str] | None]

    @cached_property
    def folders(self) -> list[str]:
        """Its packages, as folders below the root, and that of its metadata."""
        firsts = {
            os.path.relpath(path, self.root).split(os.sep)[0]
            for path in self.recorded
            if self._inside(path)
        }
        found = [os.path.join(self.root, first) for first in sorted(firsts)]
        return [f for f in found if os.path.isdir(f) and not f.endswith(".data")]

    def _inside(self, path: str) -> bool:
        return path.startswith(self.root + os.sep)

    def relative(self, path: str) -> str:
        """A path below the root as RECORD spells it."""
        return Path(os.path.relpath(path, self.root)).as_posix()

    def faults(self, hashes: Hashes, others: Mapping[str, Installed]) -> Iterator[str]:
        """One sentence for each file that is not as RECORD has it; .pyc are judged elsewhere."""
        if self.editable:
            yield f"{self.name} is an editable install, whose files may change"
            return
        if not self.recorded:
            yield f"{self.name} has no RECORD of its files"
            return
        for path, expected in self.recorded.items():
            if (said := self.fault(path, expected, hashes)) is not None:
                yield said
        for folder in self.folders:
            for path in files_below(folder):
                owner = others.get(path)
                if path not in self.recorded and owner is None:
                    yield f"{self.relative(path)} is in no RECORD"

    def fault(self, path: str, expected: tuple[str, str] | None, hashes: Hashes) -> str | None:
        """Why one recorded file is not as it was installed; None where it is."""
        shown = self.relative(path)
        if f"{os.sep}{CACHE}{os.sep}" in path:
            return None
        if expected is None:
            own = os.path.dirname(path) == self.info and os.path.basename(path) in _UNHASHED
            return None if own else f"{shown} has no hash in the RECORD of {self.name}"
        kind, value = expected
        if kind not in STRONG:
            return f"{shown} has a {kind} hash in the RECORD of {self.name}, which proves nothing"
        try:
            found = bytes.fromhex(hashes.of(path)) if kind == "sha256" else digest_of(path, kind)
        except FileNotFoundError:
            # `pip install --target` keeps scripts elsewhere; who starts them judges nothing.
            return f"{shown} of {self.name} is gone" if self._inside(path) else None
        except OSError as error:
            return f"{shown} of {self.name} cannot be read: {error.strerror}"
        if base64.urlsafe_b64encode(found).rstrip(b"=").decode() != value.rstrip("="):
            return f"{shown} differs from the RECORD of {self.name}"
        return None


@dataclass(frozen=True)
class Distributions:
    """All distributions of this process's path, the first of each name; and who owns a file."""

    by_name: Mapping[str, Installed] = field(default_factory=dict)
    owners: Mapping[str, Installed] = field(default_factory=dict)

    @classmethod
    def read(cls) -> Distributions:
        """Reads every RECORD."""
        from importlib_metadata import distributions

        by_name: dict[str, Installed] = {}
        owners: dict[str, Installed] = {}
        for distribution in distributions():
            one = _installed(distribution)
            if one is None or one.name in by_name:
                continue
            by_name[one.name] = one
            for path in one.recorded:
                owners.setdefault(path, one)
        return cls(by_name, owners)


def files_below(folder: str) -> Iterator[str]:
    """Every file below a folder, links of folders followed no further; __pycache__ is left out."""
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(one for one in folders if one != CACHE)
        yield from (os.path.join(at, name) for name in sorted(names))
        for one in folders:
            if os.path.islink(os.path.join(at, one)):
                yield os.path.join(at, one)


def closure(names: Iterable[str], everything: Iterable[str]) -> frozenset[str]:
    """The distributions that some need, themselves included, by their metadata, as far as here.

    Of those in `everything` each extra counts; of the others what was asked for.
    """
    from importlib_metadata import PackageNotFoundError, distribution
    from packaging.requirements import InvalidRequirement, Requirement

    waiting = [(normal(name), frozenset[str]()) for name in names]
    whole, seen = {normal(name) for name in everything}, set()
    while waiting:
        name, extras = key = waiting.pop()
        if key in seen:
            continue
        seen.add(key)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        for text in found.requires or ():
            try:
                need = Requirement(text)
            except InvalidRequirement:
                continue
            marker = need.marker
            if (
                name in whole
                or marker is None
                or any(marker.evaluate({"extra": one}) for one in ("", *extras))
            ):
                waiting.append((normal(need.name), frozenset(need.extras)))
    return frozenset(name for name, _ in seen)


def _installed(distribution: Any) -> Installed | None:
    info = getattr(distribution, "_path", None)
    if not isinstance(info, Path):
        return None
    headers = read_headers(distribution)
    name = normal(headers.get("name", [""])[0])
    if not name:
        return None
    root = os.path.realpath(distribution.locate_file(""))
    try:
        text = (info / "RECORD").read_text(encoding="utf-8")
        recorded = dict(_lines(text, root))
    except (OSError, ValueError, csv.Error):
        recorded = {}
    origin = getattr(distribution, "origin", None)
    return Installed(
        name,
        headers.get("version", ["unknown"])[0],
        root,
        place(info),
        bool(getattr(getattr(origin, "dir_info", None), "editable", False)),
        recorded,
    )


def _lines(text: str, root: str) -> Iterator[tuple[str, tuple[str, str] | None]]:
    """Paths are spelt below the root: one whose folder is a link is not where it was installed."""
    for line in text.splitlines():
        row = next(csv.reader([line])) if '"' in line else line.rsplit(",", 2)
        if not row or not row[0]:
            continue
        path = os.path.join(root, row[0])
        if ".." in row[0] or "//" in row[0] or "./" in row[0]:
            path = place(os.path.normpath(path))
        kind, equals, value = (row[1] if len(row) > 1 else "").partition("=")
        yield path, (kind, value) if equals else None
