"""Sentences of a finding with places for what was seen.

`{name}` is such a place. What stands in double brackets is left out where a place in it has
nothing to say: "a disk is full[[ ({where})]]".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_OPTIONAL: Final = re.compile(r"\[\[(.*?)\]\]")
_PLACE: Final = re.compile(r"\{([a-z][a-z_0-9]*)\}")


def render(text: str, values: Mapping[str, str]) -> str:
    """The sentence with its places filled."""
    if "{" not in text:
        return text

    def part(found: re.Match[str]) -> str:
        inner = found[1]
        return _filled(inner, values) if all(map(values.get, _PLACE.findall(inner))) else ""

    return _filled(_OPTIONAL.sub(part, text), values)


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda found: values.get(found[1], ""), text)


def places(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """(places that must have something to say, those that need not)."""
    needed = frozenset(_PLACE.findall(_OPTIONAL.sub("", text)))
    return needed, frozenset(_PLACE.findall(text)) - needed
