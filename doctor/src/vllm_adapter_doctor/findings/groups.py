"""Which named groups of a pattern say something wherever the pattern is found.

For the check of the files of findings alone: a sentence must not have a place that may be empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from re import _constants, _parser  # type: ignore[attr-defined]  # public only as sre_parse
from typing import Any


def named_groups(pattern: str) -> Mapping[str, bool]:
    """Each named group, without its number, and whether it always says something."""
    tree = _parser.parse(pattern)
    names = {number: _base(name) for name, number in tree.state.groupdict.items()}
    always = _always(tree, names)
    return {name: name in always for name in names.values()}


def never_matches_empty(pattern: str) -> bool:
    """Whether what it finds is never empty."""
    return bool(_parser.parse(pattern).getwidth()[0])


def _base(name: str) -> str:
    base, _, number = name.rpartition("_")
    return base if base and number.isdigit() else name


def _always(tree: Iterable[tuple[Any, Any]], names: Mapping[int, str]) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    for what, inner in tree:
        if what is _constants.SUBPATTERN:
            group, _, _, part = inner
            found |= _always(part, names)
            if group in names and part.getwidth()[0] > 0:
                found |= {names[group]}
        elif what is _constants.BRANCH:
            found |= frozenset.intersection(*(_always(branch, names) for branch in inner[1]))
        elif what in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            least, _, part = inner
            found |= _always(part, names) if least else frozenset()
        elif what is _constants.ASSERT:
            found |= _always(inner[1], names)
        elif what is _constants.ATOMIC_GROUP:
            found |= _always(inner, names)
    return found


def checked(pattern: str) -> str:
    """What is wrong with a pattern; empty where it is one."""
    try:
        re.compile(pattern)
    except re.error as error:
        return str(error)
    return ""
