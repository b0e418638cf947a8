"""Reads parsed JSON into the types that declare our file formats, and says what does not fit.

msgspec judges by the types: structs, typed dicts and dataclasses whose fields are `Annotated`.
Here is what it cannot say: the pointer of a fault with what was seen and what is needed, whole
numbers written as 16.0, null where a key should be left out, and which unknown keys a file of a
newer minor version may have.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NotRequired,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from msgspec import Meta, Struct, ValidationError, convert, to_builtins

from vllm_adapter.files import shown

T = TypeVar("T")
SOME: Final = Meta(min_length=1)
"""On a list that must not be empty."""
MAX_NUMBER: Final = 2**53
"""The largest whole number that every JSON reader keeps exactly."""
LEFT_OUT: Final = Meta(extra_json_schema={"x-left-out": True})
"""On `X | None`: None stands for a key that is left out; a file's null is a fault."""
OURS: Final = Meta(extra_json_schema={"x-ours": True})
"""On a field that no file has: the reader sets it."""
OPEN: Final[set[type]] = set()
"""Objects in which any further key is welcome."""
CLOSED: Final[dict[Any, int]] = {}
"""Objects to which a newer minor may not add keys, since ignoring one would declare more; and how
many keys one has at least."""

Text = Annotated[str, Meta(pattern=r"\S", extra={"need": "text that is not blank"})]
Whole = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Count = Annotated[int, Meta(gt=0, le=MAX_NUMBER)]
Amount = Annotated[float, Meta(ge=0, le=MAX_NUMBER)]
Rate = Annotated[float, Meta(gt=0, le=MAX_NUMBER)]

_WORDS: Final = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
}
_BOUNDS: Final = (("ge", "of at least"), ("gt", "above"), ("le", "of at most"))


class Fault(Exception):
    """The first rule that a file breaks: where, and what is wrong there."""

    def __init__(self, pointer: str, what: str) -> None:
        super().__init__(f"{pointer or 'the file'} {what}")


def form(pattern: str, need: Any, *examples: Any) -> Meta:
    """The form of a string; `need` says it in words, or is a function of the wrong value."""
    given = list(examples) or None
    return Meta(pattern=rf"^{pattern}$(?!\n)", examples=given, extra={"need": need})


def tag(kind: str) -> Meta:
    """The form of the "schema" of a file of ours."""
    name = f"vllm-adapter/{kind}"
    return form(rf"{name}/1\.[0-9]{{1,4}}", f'"{name}/1.0", or a later minor of it', f"{name}/1.0")


def read(raw: Any, kind: type[T], *, newer: bool = False, at: str = "") -> T:
    """The value of a type; `at` is the JSON pointer of `raw`, and `newer` ignores unknown keys.

    Raises:
        Fault: the first place where `raw` does not fit.
    """
    prepared = _prepared(raw, kind, at, newer)
    try:
        return convert(prepared, kind)
    except (ValidationError, UnicodeError, OverflowError):
        raise _deepest(prepared, kind, at) from None


def plain(value: Any) -> Any:
    """A struct or a dataclass as JSON values; a path is its text."""
    return _with_lists(to_builtins(value, enc_hook=str))


def revived(raw: Any, kind: type[T]) -> T:
    """What `plain` gave, as it was; ValueError where it has another shape."""
    return convert(raw, kind, dec_hook=lambda wanted, text: wanted(text))


def _with_lists(value: Any) -> Any:
    """The same with lists in the place of tuples, as JSON is read."""
    if isinstance(value, dict):
        return {key: _with_lists(item) for key, item in value.items()}
    return [_with_lists(item) for item in value] if isinstance(value, tuple) else value


def escaped(key: str) -> str:
    """A key as one part of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def _prepared(value: Any, hint: Any, at: str, newer: bool) -> Any:
    """The value as msgspec takes it."""
    if isinstance(value, (str, bool)):
        return value
    kind, metas, _ = _opened(hint, value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Fault(at, f"is {value}; write a finite number")
        return int(value) if kind is int and value.is_integer() else value
    if value is None and LEFT_OUT in metas:
        raise Fault(at, f"is null; write {_need(value, kind, metas, False)}, or leave it out")
    if isinstance(value, dict):
        known = fields_of(kind)
        if known and kind not in OPEN and (kind in CLOSED or not newer):
            for key in value:
                if key not in known:
                    at = f"{at}/{escaped(str(key))}"
                    raise Fault(at, f"is an unknown key; keys: {', '.join(known)}")
            if len(value) < CLOSED.get(kind, 0):
                raise Fault(at, f"is {{}}; write an object of at least one of: {', '.join(known)}")
        return {
            key: _prepared(item, part, f"{at}/{escaped(str(key))}", newer)
            for key, item, part in _children(value, kind)
        }
    if isinstance(value, list):
        parts = _children(value, kind)
        prepared = [_prepared(item, part, f"{at}/{i}", newer) for i, item, part in parts]
        return prepared + value[len(prepared) :]
    return value


def _opened(hint: Any, value: Any) -> tuple[Any, list[Meta], bool]:
    """A type without its notes, these, and whether null is allowed.

    Of a union it is the list, where the value is one, and else the first.
    """
    metas: list[Meta] = []
    null = False
    while True:
        origin = get_origin(hint)
        if origin is Annotated:
            metas += hint.__metadata__
            hint = hint.__origin__
        elif origin in (Union, UnionType):
            options = [one for one in get_args(hint) if one is not NoneType]
            null = null or len(options) < len(get_args(hint))
            lists = [one for one in options if get_origin(_opened(one, None)[0]) is tuple]
            hint = lists[0] if lists and isinstance(value, list) else options[0]
        else:
            return hint, metas, null


@cache
def fields_of(kind: Any) -> Mapping[str, Any] | None:
    """The keys that an object of this type may have, with their types; None for other types."""
    if not isinstance(kind, type) or not getattr(kind, "__annotations__", None):
        return None
    hints = get_type_hints(kind, include_extras=True)
    hints = {k: h.__args__[0] if get_origin(h) is NotRequired else h for k, h in hints.items()}
    if issubclass(kind, Struct):
        spelt = zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)
        hints = {key: hints[name] for key, name in spelt}
    return {key: hint for key, hint in hints.items() if OURS not in _opened(hint, None)[1]}


def _children(value: Any, kind: Any) -> Iterator[tuple[Any, Any, Any]]:
    """(key, value, type) of what an object or a list holds, as far as types say."""
    args, origin = get_args(kind), get_origin(kind)
    if isinstance(value, dict):
        known = fields_of(kind) or {}
        parts = dict.fromkeys(value, args[1]) if origin in (dict, Mapping) else known
        yield from ((key, item, parts[key]) for key, item in value.items() if key in parts)
    elif isinstance(value, list) and origin in (tuple, list):
        each = args[:1] * len(value) if args[-1] is Ellipsis or len(args) == 1 else args
        yield from zip(range(len(value)), value, each, strict=False)


def _deepest(value: Any, hint: Any, at: str) -> Fault:
    """What does not fit at the innermost place where something does not."""
    kind, metas, null = _opened(hint, value)
    for key, item, part in _children(value, kind):
        try:
            convert(item, part)
        except (ValidationError, UnicodeError, OverflowError):
            return _deepest(item, part, f"{at}/{escaped(str(key))}")
    if isinstance(value, dict) and fields_of(kind):
        try:
            convert(value, kind)
        except ValidationError as error:
            missing = re.match("Object missing required field `(.*)`", str(error))
            if missing:
                return Fault(f"{at}/{escaped(missing[1])}", "is missing")
            if isinstance(error.__cause__, ValueError):  # of the type's own __post_init__
                own = str(error.__cause__)
                below, _, what = own.partition(" ") if own[0] == "/" else ("", "", own)
                return Fault(f"{at}{below}", what)
    return Fault(at, f"is {shown(value)}; write {_need(value, kind, metas, null)}")


def _need(value: Any, kind: Any, metas: list[Meta], null: bool) -> str:
    """What a place needs, in words."""
    own = next((meta.extra["need"] for meta in metas if meta.extra), None)
    words = own(value) if callable(own) else own or _words(kind, metas)
    return f"{words}, or null when it is unknown" if null and LEFT_OUT not in metas else words


def _words(kind: Any, metas: list[Meta]) -> str:
    if get_origin(kind) is Literal:
        return f"one of: {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) in (tuple, list):
        args = get_args(kind)
        fixed = get_origin(kind) is tuple and args[-1] is not Ellipsis
        least = max((meta.min_length or 0 for meta in metas), default=0)
        return f"a list of {len(args)} items" if fixed else f"a list{_least(least, 'item')}"
    if kind not in _WORDS:
        return f"an object{_least(max((m.min_length or 0 for m in metas), default=0), 'key')}"
    words = _WORDS[kind]
    for meta in metas:
        bounds = [(getattr(meta, name), how) for name, how in _BOUNDS]
        limits = [f"{how} {bound}" for bound, how in bounds if bound is not None]
        words += f" {' and '.join(limits)}" if limits else ""
        if meta.pattern:
            example = f", such as {meta.examples[0]}" if meta.examples else ""
            words += " of the form " + meta.pattern.replace(r"(?!\n)", "") + example
    return words


def _least(count: int, what: str) -> str:
    return f" of at least {count} {what}" if count else ""
