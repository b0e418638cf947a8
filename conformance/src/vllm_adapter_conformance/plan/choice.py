"""Which items of a plan a user's patterns mean."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Final

from vllm_adapter.errors import InputError
from vllm_adapter_conformance.base.rule import LEVELS

_NEAR: Final = 5


def level_of(patterns: Iterable[str]) -> str | None:
    """The highest level that a pattern begins with, as in `L3.llama`; None if none does."""
    named = [
        level for level in LEVELS for p in patterns if p == level or p.startswith(f"{level}.")
    ]
    return max(named, default=None)


def choose(ids: Sequence[str], patterns: Sequence[str], level: str) -> list[str]:
    """The ids that any pattern means, in their order.

    A pattern is an id, a part of one, or has `*` for any characters and `?` for one. Brackets
    are characters as others, since ids have them.

    Raises:
        InputError: a pattern means none.
    """
    wanted: set[str] = set()
    for pattern in patterns:
        found = matching(ids, pattern)
        if not found:
            near = nearest(ids, pattern)
            raise InputError(
                f"no item up to {level} has {pattern!r} in its name",
                hint=f"near it: {', '.join(near)}; --list prints all"
                if near
                else "--list prints all; --level takes in more",
            )
        wanted.update(found)
    return [id for id in ids if id in wanted]


def matching(ids: Sequence[str], pattern: str) -> list[str]:
    """The ids that one pattern means."""
    if pattern in ids:
        return [pattern]
    if "*" not in pattern and "?" not in pattern:
        return [id for id in ids if pattern in id]
    parts = re.split(r"([*?])", pattern)
    wild = {"*": ".*", "?": "."}
    expression = re.compile("".join(wild.get(part) or re.escape(part) for part in parts), re.S)
    return [id for id in ids if expression.fullmatch(id)]


def nearest(ids: Sequence[str], pattern: str) -> list[str]:
    """Names that a mistyped pattern may have meant: items, rules, or parts of a rule's name."""
    rules = list(dict.fromkeys(id.partition("[")[0] for id in ids))
    parts = list(dict.fromkeys(part for rule in rules for part in rule.split(".")))
    plain = pattern.strip("*?")
    if "[" in plain:
        rule = plain.partition("[")[0]
        same = [id for id in ids if rule and id.startswith(f"{rule}[")]
        found = difflib.get_close_matches(plain, same or ids, n=_NEAR, cutoff=0.5)
        return found or same[:_NEAR]
    return difflib.get_close_matches(plain, [*rules, *parts], n=_NEAR, cutoff=0.5)
