"""Frozen dataclasses to and from JSON values, by their own annotations.

Known annotations: str, bool, int, float, another such dataclass, `X | None`, `tuple[X, ...]` and
`tuple[X, Y]`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from vllm_adapter.errors import InputError

_NAMES: Final[Mapping[type, str]] = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
}


def encode(value: Any) -> Any:
    """A dataclass becomes an object, a tuple a list; anything else is itself."""
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if is_dataclass(value):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    return value


def decode(kind: Any, raw: Any, at: str = "", *, newer: bool = False) -> Any:
    """The value of type `kind` that `encode` made `raw` from; `at` is its JSON pointer.

    With `newer`, keys that we do not know are left out: a later release wrote them.

    Raises:
        InputError: the first place where `raw` does not fit.
    """
    origin = get_origin(kind)
    if origin is UnionType:
        return None if raw is None else decode(get_args(kind)[0], raw, at, newer=newer)
    if origin is tuple:
        return _tuple(get_args(kind), raw, at, newer)
    if is_dataclass(kind):
        return _object(kind, raw, at, newer)
    if kind is float and type(raw) is int:
        return _finite(raw, at)
    if type(raw) is not kind:
        raise _bad(at, f"must be {_NAMES[kind]}")
    return _finite(raw, at) if kind is float else raw


def _tuple(items: tuple[Any, ...], raw: Any, at: str, newer: bool) -> tuple[Any, ...]:
    if not isinstance(raw, list):
        raise _bad(at, "must be a list")
    kinds = [items[0]] * len(raw) if items[-1] is Ellipsis else list(items)
    if len(kinds) != len(raw):
        raise _bad(at, f"must have {len(kinds)} items")
    pairs = enumerate(zip(kinds, raw, strict=True))
    return tuple(decode(kind, item, f"{at}/{i}", newer=newer) for i, (kind, item) in pairs)


def _object(kind: Any, raw: Any, at: str, newer: bool) -> Any:
    if not isinstance(raw, Mapping):
        raise _bad(at, "must be an object")
    hints = get_type_hints(kind)
    for key in raw:
        if key not in hints and not newer:
            raise _bad(at, f"has the unknown key {key!r}; keys: {', '.join(hints)}")
    for field in fields(kind):
        if field.default is MISSING and field.name not in raw:
            raise _bad(at, f"has no {field.name}")
    values = {
        key: decode(hints[key], value, f"{at}/{key}", newer=newer)
        for key, value in raw.items()
        if key in hints
    }
    try:
        return kind(**values)
    except ValueError as error:
        raise _bad(at, f"cannot be read: {error}") from None


def _finite(number: float, at: str) -> float:
    try:
        value = float(number)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise _bad(at, f"must be {_NAMES[float]}")
    return value


def _bad(at: str, what: str) -> InputError:
    return InputError(
        f"host facts: {at or 'the file'} {what}",
        hint="give host facts in the form that HostFacts.to_json writes",
    )
