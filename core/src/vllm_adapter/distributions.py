"""Reads installed distributions: their entry points of one group, and what they require.

Every file is read leniently and alone: a distribution with unreadable metadata must not hide the
others, and `importlib_metadata`'s own parsers cost ten times these lines. Version bounds such as
">=2.11,<2.14", "==2.13.*" and "~=2.11" are read here; anything else (markers, URLs, pre-releases
in the bound) is left to `packaging`, which is imported for it alone.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

_TERM: Final = re.compile(r"\s*(>=|<=|==|!=|~=|>|<)\s*(\d+(?:\.\d+)*)(\.\*)?\s*\Z", re.ASCII)
_TORCH: Final = re.compile(r"torch\s*(?:\[[^\]]*\])?\s*(?![\w.-])", re.ASCII | re.IGNORECASE)
_RELEASE: Final = re.compile(r"v?(?:\d+!)?(\d+(?:\.\d+)*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """One entry point of an installed distribution, and the distribution's headers we use."""

    name: str
    value: str
    distribution: str
    version: str
    editable: bool
    requires_python: str
    requires_torch: tuple[str, ...]

    def load(self) -> Any:
        """The module that `value` names, imported."""
        return importlib.import_module(self.value)


def entry_points(group: str) -> list[EntryPoint]:
    """Every entry point of a group; of a distribution found twice, the first on the path."""
    from importlib_metadata import distributions

    found: list[EntryPoint] = []
    seen: set[str] = set()
    for distribution in distributions():
        points = list(section(_text(distribution, "entry_points.txt"), group))
        if not points:
            continue
        headers = _headers(_text(distribution, "METADATA") or _text(distribution, "PKG-INFO"))
        name = headers.get("name", ["unknown"])[0]
        if name in seen:
            continue
        seen.add(name)
        found += [
            EntryPoint(
                point,
                value,
                name,
                version=headers.get("version", ["unknown"])[0],
                editable=_editable(distribution),
                requires_python=headers.get("requires-python", [""])[0],
                requires_torch=tuple(_torch_bounds(headers.get("requires-dist", []))),
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
    terms = [_TERM.match(part) for part in text.split(",")]
    match = _RELEASE.match(version)
    if match is None or not all(terms):
        return _by_packaging(version, text)
    release = _numbers(match[1])
    return all(term is not None and _holds(release, *term.groups()) for term in terms)


def _holds(release: tuple[int, ...], word: str, bound_text: str, star: str | None) -> bool:
    bound = _numbers(bound_text)
    length = max(len(release), len(bound))
    left, right = _padded(release, length), _padded(bound, length)
    if star:
        return (left[: len(bound)] == bound) == (word == "==")
    if word == "~=":
        return left >= right and left[: len(bound) - 1] == bound[:-1]
    return {
        ">=": left >= right,
        "<=": left <= right,
        "==": left == right,
        "!=": left != right,
        ">": left > right,
        "<": left < right,
    }[word]


def _by_packaging(version: str, specifier: str) -> bool:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(f"it{specifier}")
    except InvalidRequirement:
        return True
    if requirement.marker is not None and not requirement.marker.evaluate():
        return True
    return requirement.specifier.contains(version, prereleases=True)


def _text(distribution: Any, file: str) -> str:
    try:
        return distribution.read_text(file) or ""
    except (OSError, ValueError):  # not ours to repair: UnicodeDecodeError is a ValueError
        return ""


def section(text: str, group: str) -> Iterator[tuple[str, str]]:
    """The name and value of each line in a group of entry_points.txt."""
    header = f"[{group}]"
    if header not in text:
        return
    inside = False
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            inside = line == header
        elif inside and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield name.strip(), value.strip()


def _headers(text: str) -> dict[str, list[str]]:
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
        origin = distribution.origin
    except ValueError:  # direct_url.json is not JSON
        return False
    return bool(getattr(getattr(origin, "dir_info", None), "editable", False))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _padded(numbers: tuple[int, ...], length: int) -> tuple[int, ...]:
    return numbers + (0,) * (length - len(numbers))
