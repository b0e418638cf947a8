"""The vendors' files as they are: read once, at the first question, in the order of their rank.

A plain reader without checks: the schema `vendor` is held against every file by a test, and each
module turns the section that it needs into dataclasses of its own. Nothing here knows a vendor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final, TypeVar

import vllm_adapter_vendors
from vllm_adapter.errors import InputError

K = TypeVar("K")
V = TypeVar("V")
_FORGET: Final[list[Callable[[], None]]] = []


def once(read: Callable[[], V]) -> Callable[[], V]:
    """A function of the files that is computed at its first call, and again after `forget`."""
    kept = cache(read)
    _FORGET.append(kept.cache_clear)
    return kept


def forget() -> None:
    """Has every table read the files again: for tests that bring a vendor of their own."""
    for clear in _FORGET:
        clear()


class LazyMapping(Mapping[K, V]):
    """A mapping out of the files, which are read when it is first looked into."""

    def __init__(self, read: Callable[[], Mapping[K, V]]) -> None:
        self._read = once(read)

    def __getitem__(self, key: K) -> V:
        return self._read()[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return repr(self._read())


@once
def documents() -> tuple[Mapping[str, Any], ...]:
    """Every vendor's document, the lowest rank first.

    Raises:
        InputError: a file is no JSON object, or its name is not its vendor's.
    """
    found = [_document(name, raw) for name, raw in vllm_adapter_vendors.vendor_files()]
    return tuple(sorted(found, key=lambda one: (one["rank"], one["name"])))


def _document(name: str, raw: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(raw)
        good = document["name"] == name and isinstance(document["rank"], int)
    except (ValueError, TypeError, KeyError):
        good = False
    if not good:
        raise InputError(
            f"the vendor file {name}.json is no JSON object with the name {name!r} and a rank",
            hint="reinstall vllm-adapter-vendors, or mend the file by its schema, vendor-1.0.json",
        )
    return dict(document)


def typed(raw: Mapping[str, Any], kind: type[V], **more: Any) -> V:
    """A section of a file, and `more` fields, as the dataclass that declares it.

    Patterns are compiled; keys that the type does not name are for other readers.
    """
    import re

    from msgspec import convert

    return convert({**raw, **more}, kind, dec_hook=lambda _, pattern: re.compile(pattern))


def sections(*path: str) -> Iterator[tuple[str, Any]]:
    """(vendor, value) of every document that has something at this path, by rank."""
    for document in documents():
        value: Any = document
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            yield document["name"], value
