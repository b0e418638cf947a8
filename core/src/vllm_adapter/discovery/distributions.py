"""Reads installed distributions: their entry points of one group, and what they require.

`importlib_metadata` finds distributions and parses their entry points, `packaging` version bounds.
The files are read here, each alone and up to a limit: `Distribution.read_text` would wait for a
pipe, take a file without end whole, and drop one that is not UTF-8 in silence.
"""

from __future__ import annotations

import errno
import importlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vllm_adapter.files import PACKAGE_BYTES, read_bounded, shown

_TORCH: Final = re.compile(r"torch\s*(?:\[[^\]]*\])?\s*(?![\w.-])", re.ASCII | re.IGNORECASE)
_NO_NAME: Final = "unknown"
MAX_POINTS: Final = 64
"""Entry points of one group that a distribution may have; each costs a search for its package."""
_OURS: Final = re.compile(r"vllm-adapter-(?!core|conformance|schemas|template|doctor|vendors)(.+)")
_GONE: Final = (FileNotFoundError, NotADirectoryError)
_RELEASE: Final = re.compile(r"v?(?:\d+!)?\d+(?:\.\d+)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """One entry point of an installed distribution, and the distribution's headers we use.

    `fault` is why it cannot be used, known already from the distribution's own files.
    """

    name: str
    value: str
    distribution: str
    version: str
    editable: bool
    requires_python: str
    requires_torch: tuple[str, ...]
    fault: str = ""

    def load(self) -> Any:
        """The module that `value` names, or what it names in the module ("module:name")."""
        module, _, path = self.value.partition(":")
        found: Any = importlib.import_module(module)
        for name in filter(None, path.split(".")):
            found = getattr(found, name)
        return found


def entry_points(group: str, *, faulty: bool = False) -> list[EntryPoint]:
    """Every entry point of a group; of a distribution found twice, the first on the path.

    Of one whose file of entry points cannot be read, or names too many, nothing; with `faulty`
    one with a `fault`, named after the distribution, if that is called vllm-adapter-NAME or what
    can be made out says that it is concerned.
    """
    from importlib_metadata import distributions

    found: list[EntryPoint] = []
    seen: set[str] = set()
    shadowed: set[str] = set()
    for distribution in distributions():
        folder = folder_name(distribution)
        if folder in shadowed:
            continue
        if folder != _NO_NAME:
            shadowed.add(folder)
        fault = ""
        try:
            points = read_points(distribution, group)
        except OSError as error:
            points, fault = [], f"its entry_points.txt cannot be read: {error.strerror}"
            if not (_OURS.match(folder_name(distribution)) or _mentions(distribution, group)):
                continue
        if not points and not fault:
            continue
        headers = read_headers(distribution)
        name = headers.get("name", [""])[0] or folder_name(distribution)
        if name in seen:
            continue
        seen.add(name)
        if len(points) > MAX_POINTS:
            fault = f"its entry_points.txt has {len(points)} in [{group}], above {MAX_POINTS}"
        if fault and not faulty:
            continue
        if fault:
            ours = _OURS.match(name.lower())
            points = [((ours[1] if ours else name).replace("-", "_"), "")]
        found += [
            EntryPoint(
                point,
                value,
                name,
                version=headers.get("version", ["unknown"])[0],
                editable=_editable(distribution),
                requires_python=headers.get("requires-python", [""])[0],
                requires_torch=tuple(_torch_bounds(headers.get("requires-dist", []))),
                fault=fault,
            )
            for point, value in points
        ]
    return found


def satisfies(version: str, specifier: str) -> bool:
    """Whether a version is inside a specifier: the text behind the name in a requirement.

    A specifier that nobody can read is satisfied: it is pip's to refuse.
    """
    text = specifier.strip().removeprefix("(").removesuffix(")")
    if not text:
        return True
    try:
        return _within(version, text)
    except Exception:  # packaging's parsers, on a text of anybody's
        return True


def _within(version: str, text: str) -> bool:
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    if any(mark in text for mark in ";@"):  # the parser of requirements costs twice as much
        from packaging.requirements import Requirement

        requirement = Requirement(f"it{text}")
        if requirement.marker is not None and not requirement.marker.evaluate():
            return True
        bounds = requirement.specifier
    else:
        bounds = SpecifierSet(text)
    try:
        found = Version(version)
    except InvalidVersion:  # a vendor's build, whose release can be made out
        release = _RELEASE.match(version)
        found = Version(release[0] if release else version)
    return bounds.contains(found, prereleases=True)


def read_text(distribution: Any, file: str, *, cut: bool = False) -> str:
    """A file of a distribution's metadata; empty where it has none. With `cut`, its beginning.

    Raises:
        OSError: it cannot be read; `strerror` says why.
    """
    folder = getattr(distribution, "_path", None)
    try:
        if not isinstance(folder, Path):  # inside an archive, or of another finder
            return distribution.read_text(file) or ""
        content = read_bounded(folder / file, PACKAGE_BYTES, cut=cut)
        # A byte-order mark, which some editors write, would hide the first section.
        return content.decode("utf-8-sig", "ignore" if cut else "strict")
    except _GONE:
        return ""
    except ValueError:
        raise OSError(errno.EILSEQ, "it is not UTF-8 text") from None


def read_headers(distribution: Any) -> dict[str, list[str]]:
    """The headers of a distribution by their names in lower case; none where nobody can read."""
    return _headers(_text(distribution, "METADATA") or _text(distribution, "PKG-INFO"))


def _text(distribution: Any, file: str) -> str:
    try:
        return read_text(distribution, file, cut=True)
    except OSError:  # not ours to repair
        return ""


def read_points(distribution: Any, group: str) -> list[tuple[str, str]]:
    """The name and value of each entry point of a group that a distribution has.

    Raises:
        OSError: its file of entry points cannot be read; `strerror` says why.
    """
    text = read_text(distribution, "entry_points.txt")
    if f"[{group}]" not in text:
        if line := unclosed(text):
            raise OSError(errno.EILSEQ, f"the section {shown(line)} has no closing bracket")
        return []
    from vllm_adapter.discovery.bounded import points_in

    return points_in(text, group)


def _mentions(distribution: Any, group: str) -> bool:
    """Whether the group's name stands in a file of entry points that cannot be read as text."""
    folder = getattr(distribution, "_path", None)
    if not isinstance(folder, Path):
        return False
    try:
        content = read_bounded(folder / "entry_points.txt", PACKAGE_BYTES, cut=True)
    except OSError:
        return False
    return group.encode() in content.replace(b"\0", b"")  # also in UTF-16


def folder_name(distribution: Any) -> str:
    """The name that a distribution has by the folder of its metadata, in lower case."""
    folder = str(getattr(getattr(distribution, "_path", None), "name", "")) or _NO_NAME
    stem = folder.removesuffix(".dist-info").removesuffix(".egg-info").partition("-")[0]
    return re.sub(r"[-_.]+", "-", stem).lower()


def unclosed(text: str) -> str | None:
    """The first line that begins a section and does not end it: what is under it is hidden."""
    lines = map(str.strip, text.splitlines())
    return next((one for one in lines if one.startswith("[") and not one.endswith("]")), None)


def _headers(text: str) -> dict[str, list[str]]:
    """Not by `email.parser`: importing it costs `list` a tenth of its time."""
    headers: dict[str, list[str]] = {}
    for line in text.splitlines():
        if not line:
            break
        key, colon, value = line.partition(":")
        if colon and not line[0].isspace():
            headers.setdefault(key.lower(), []).append(value.strip())
    return headers


def _torch_bounds(requirements: list[str]) -> Iterator[str]:
    for requirement in requirements:
        name = _TORCH.match(requirement)
        bound = requirement[name.end() :].strip() if name else ""
        if bound and "extra" not in bound:  # nobody records which extras were asked for
            yield bound


def _editable(distribution: Any) -> bool:
    try:
        origin = json.loads(_text(distribution, "direct_url.json") or "null")
    except (ValueError, RecursionError):
        return False
    info = origin.get("dir_info") if isinstance(origin, dict) else None
    return isinstance(info, dict) and bool(info.get("editable", False))
