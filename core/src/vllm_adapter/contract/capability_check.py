"""The plain checks of a capability descriptor: what the JSON Schema says, without jsonschema.

A broken rule is a `Fault` with the JSON pointer. The schema documents the fields; a property
test shows that both agree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from vllm_adapter.contract.decision import OperatorEntry, Rule
from vllm_adapter.contract.manifest import DOTTED, TORCH_TYPE, check_match
from vllm_adapter.contract.operators import DTYPES, OPERATORS, PHASES, Fact
from vllm_adapter.files import shown

SUPPORT: Final = ("full", "versioned", "not_implemented", "unsupported", "unknown")
SOURCES: Final = ("measured", "queried", "datasheet", "assumed")
FORMS: Final = ("kernel", "torch")
LIMIT_WORDS: Final = ("min", "max", "multiple_of")
FP8_FLAVOURS: Final = ("e4m3fn", "e4m3fnuz")
UNIT_DTYPES: Final = (
    "float64",
    "float32",
    "tfloat32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float4_e2m1fn",
    "int8",
    "int4",
)
MAX_NUMBER: Final = 2**53
"""The largest whole number that every JSON reader keeps exactly."""
MAY_BE_ZERO: Final = frozenset(
    {"engine_count", "max_concurrent_transfers", "runtime_reserve_bytes", "shared_memory_bytes"}
)
"""Figures for which zero says something; all others are above zero, and null when unknown."""
_VARIANT = re.compile(r"[a-z0-9][a-z0-9_]*\Z")
_DRIVER_KEYS: Final = ("component", "minimum", "builds", "blocked", "downgrades")
_BUILD_KEYS: Final = ("runtime", "version", "minimum", "tested")
_DOWNGRADE_KEYS: Final = ("feature", "below", "to", "reason")


class Fault(Exception):
    """The first rule that a descriptor breaks: where, and what is wrong there."""

    def __init__(self, pointer: str, what: str) -> None:
        super().__init__(f"{pointer or 'the file'} {what}")


class Checker:
    """Checks one descriptor. `newer`: of a later minor, whose unknown keys are ignored.

    A limit's facts and words, and the keys of `match`, stay closed all the same: ignoring one
    would declare more than its author did.
    """

    def __init__(self, newer: bool) -> None:
        self.newer = newer

    def section(self, kind: type, value: Any, pointer: str) -> dict[str, Any]:
        """The fields of a section's dataclass, checked by the types it declares."""
        types = {f.name: str(f.type) for f in fields(kind)}
        result: dict[str, Any] = {}
        for key, item in self._known(value, (*types, "source"), pointer).items():
            at = f"{pointer}/{key}"
            if key == "source":
                self.source(item, at)
                continue
            check = _FIELDS.get(key) or _TYPES[types[key].removesuffix(" | None")]
            if item is None and types[key].endswith("None"):
                result[key] = None
            elif fault := check(item, key):
                raise Fault(at, f"is {shown(item)}; {fault}")
            else:
                result[key] = int(item) if types[key] == "int | None" else item
        return result

    def table(self, value: Any, names: Collection[str], pointer: str) -> dict[str, Any]:
        """A section whose keys are names of things, without its `source`."""
        known = self._known(value, (*names, "source"), pointer)
        if "source" in known:
            self.source(known.pop("source"), f"{pointer}/source")
        return known

    def source(self, value: Any, pointer: str) -> None:
        """`{kind, reference}`."""
        known = self._known(value, ("kind", "reference"), pointer)
        _one_of(known.get("kind"), SOURCES, f"{pointer}/kind")
        if known.get("reference") is not None:
            _need(_text(known["reference"], ""), f"{pointer}/reference")

    def sources(self, value: Any) -> None:
        """JSON pointer to source."""
        for key, item in _object(value, "/sources").items():
            if not key.startswith("/"):
                raise Fault("/sources", f"has {shown(key)}, which is no JSON pointer")
            self.source(item, f"/sources/{escaped(key)}")

    def match(self, value: Any) -> list[dict[str, Any]]:
        """The manifest's vocabulary."""
        _need(check_match(value), "/match")
        return list(value)

    def driver(self, value: Any) -> dict[str, Any]:
        """Versions and downgrades."""
        known = self.table(value, _DRIVER_KEYS, "/driver")
        for key in ("component", "minimum"):
            if known.get(key) is not None:
                _need(_text(known[key], ""), f"/driver/{key}")
        for i, item in enumerate(_list(known.get("builds", []), "/driver/builds")):
            self._build(item, f"/driver/builds/{i}")
        for i, version in enumerate(_list(known.get("blocked", []), "/driver/blocked")):
            _need(_text(version, ""), f"/driver/blocked/{i}")
        for i, item in enumerate(_list(known.get("downgrades", []), "/driver/downgrades")):
            at = f"/driver/downgrades/{i}"
            downgrade = self._known(item, _DOWNGRADE_KEYS, at)
            for key in _DOWNGRADE_KEYS:
                _need(_text(downgrade.get(key), ""), f"{at}/{key}")
        return known

    def _build(self, item: Any, at: str) -> None:
        build = self._known(item, _BUILD_KEYS, at)
        for key in ("runtime", "version"):
            _need(_text(build.get(key), ""), f"{at}/{key}")
        if "minimum" in build:
            _need(_text(build["minimum"], ""), f"{at}/minimum")
        if "tested" in build and not _list(build["tested"], f"{at}/tested"):
            raise Fault(f"{at}/tested", "is an empty list; leave it out instead")
        for i, version in enumerate(build.get("tested", ())):
            _need(_text(version, ""), f"{at}/tested/{i}")

    def advice(self, value: Any) -> tuple[str, ...]:
        """Sentences for people."""
        for i, sentence in enumerate(_list(value, "/advice")):
            _need(_text(sentence, ""), f"/advice/{i}")
        return tuple(value)

    def entries(self, operator: str, value: Any) -> tuple[OperatorEntry, ...]:
        """One declaration of an operator, or a list of them."""
        base = f"/operators/{operator}"
        if not isinstance(value, list):
            return (self._entry(operator, value, base),)
        if not value:
            raise Fault(base, "is an empty list; leave the operator out instead")
        return tuple(self._entry(operator, e, f"{base}/{i}") for i, e in enumerate(value))

    def _entry(self, operator: str, value: Any, pointer: str) -> OperatorEntry:
        names = [f.name for f in fields(OperatorEntry) if f.name != "pointer"]
        entry = self._known(value, names, pointer)
        _one_of(entry.get("support"), SUPPORT, f"{pointer}/support")
        if "form" in entry:
            _one_of(entry["form"], FORMS, f"{pointer}/form")
        for key in ("run", "plan", "prepare_weights", "supports"):
            if key in entry and not _matches(DOTTED, entry[key]):
                raise Fault(
                    f"{pointer}/{key}", f"is {shown(entry[key])}; write it as module:function"
                )
        if "variant" in entry and not _matches(_VARIANT, entry["variant"]):
            raise Fault(f"{pointer}/variant", "must be lower-case letters, digits and _")
        if "first_version" in entry:
            _need(_text(entry["first_version"], ""), f"{pointer}/first_version")
        if "dtypes" in entry:
            entry["dtypes"] = self._dtypes(entry["dtypes"], f"{pointer}/dtypes")
        limits = _object(entry.get("limits", {}), f"{pointer}/limits")
        entry["limits"] = {
            fact: _rule(operator, fact, rule, f"{pointer}/limits") for fact, rule in limits.items()
        }
        result = OperatorEntry(**entry, pointer=pointer)
        for key in _needs(result.support):
            if not getattr(result, key):
                raise Fault(pointer, f"is {result.support} and so needs {key}")
        return result

    def _dtypes(self, value: Any, pointer: str) -> tuple[str, ...]:
        for i, dtype in enumerate(_list(value, pointer)):
            _one_of(dtype, DTYPES, f"{pointer}/{i}")
        if not value or len(set(value)) != len(value):
            raise Fault(pointer, "must hold at least one dtype, and none twice")
        return tuple(value)

    def _known(self, value: Any, names: Sequence[str], pointer: str) -> dict[str, Any]:
        known = {key: item for key, item in _object(value, pointer).items() if key in names}
        if not self.newer:
            for key in value:
                if key not in known:
                    raise Fault(
                        f"{pointer}/{escaped(key)}", f"is unknown; known: {', '.join(names)}"
                    )
        return known


def escaped(key: str) -> str:
    """A key as one part of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def _needs(support: str) -> tuple[str, ...]:
    return {
        "full": ("dtypes", "run"),
        "versioned": ("dtypes", "run", "first_version"),
    }.get(support, ())


def _rule(operator: str, name: str, rule: Any, pointer: str) -> Rule:
    facts = OPERATORS[operator].facts
    if name not in facts:
        raise Fault(
            f"{pointer}/{escaped(name)}", f"is no fact of {operator}; facts: {', '.join(facts)}"
        )
    pointer = f"{pointer}/{name}"
    check = _fact_check(facts[name])
    if isinstance(rule, list):
        if not rule:
            raise Fault(pointer, "is an empty list, which no case keeps")
        for i, value in enumerate(rule):
            _need(check(value, name), f"{pointer}/{i}")
        return tuple(rule)
    if isinstance(facts[name].samples[0], (bool, str)):
        raise Fault(pointer, "must be a list of values")
    if not isinstance(rule, dict) or not rule:
        raise Fault(pointer, "must be a list, or an object of min, max, multiple_of")
    for word, bound in rule.items():
        _one_of(word, LIMIT_WORDS, f"{pointer}/{escaped(word)}")
        _need(_bound(bound, word), f"{pointer}/{word}")
    return dict(rule)


Check = Callable[[Any, str], str | None]


def _fact_check(fact: Fact) -> Check:
    """How one value of a fact is checked; the samples show its type."""
    sample = fact.samples[0]
    if sample in PHASES:
        return lambda v, _: None if v in PHASES else f"must be one of: {', '.join(PHASES)}"
    if isinstance(sample, bool):
        return _boolean
    if isinstance(sample, str):
        return _text
    return _whole if isinstance(sample, int) else _bound


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and 0 <= value <= MAX_NUMBER
        and math.isfinite(value)
    )


def _number(value: Any, key: str) -> str | None:
    if not _is_number(value) or (value == 0 and key not in MAY_BE_ZERO):
        return "write a number above zero, or null when it is unknown"
    return None


def _integer(value: Any, key: str) -> str | None:
    if not _is_number(value) or int(value) != value or (value == 0 and key not in MAY_BE_ZERO):
        least = "zero or more" if key in MAY_BE_ZERO else "above zero"
        return f"write a whole number {least}, or null when it is unknown"
    return None


def _bound(value: Any, word: str) -> str | None:
    if not _is_number(value) or (value == 0 and word == "multiple_of"):
        return "must be a number, not negative, and above zero for multiple_of"
    return None


def _whole(value: Any, _: str) -> str | None:
    ok = _is_number(value) and int(value) == value
    return None if ok else "must be a whole number, not negative"


def _boolean(value: Any, _: str) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _text(value: Any, _: str) -> str | None:
    return None if isinstance(value, str) and value.strip() else "must be a string with text"


def _torch_type(value: Any, _: str) -> str | None:
    return (
        None if _matches(TORCH_TYPE, value) else "write the name of a torch device type, or null"
    )


def _capability_id(value: Any, _: str) -> str | None:
    pair = isinstance(value, (list, tuple)) and len(value) == 2
    if pair and not any(_whole(part, "") for part in value):
        return None
    return "write [major, minor], or null where the vendor has no such number"


def _flavour(value: Any, _: str) -> str | None:
    return None if value in FP8_FLAVOURS else f"use one of: {', '.join(FP8_FLAVOURS)}"


_TYPES: Final[Mapping[str, Check]] = {
    "int": _integer,
    "float": _number,
    "bool": _boolean,
    "str": _text,
}
_FIELDS: Final[Mapping[str, Check]] = {
    "torch_type": _torch_type,
    "capability_id": _capability_id,
    "fp8_flavour": _flavour,
}


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.match(value) is not None


def _object(value: Any, pointer: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Fault(pointer, "must be an object")
    return value


def _list(value: Any, pointer: str) -> list[Any]:
    if not isinstance(value, list):
        raise Fault(pointer, "must be a list")
    return value


def _one_of(value: Any, words: Sequence[str], pointer: str) -> None:
    if value not in words:
        raise Fault(pointer, f"is {shown(value)}; use one of: {', '.join(words)}")


def _need(fault: str | None, pointer: str) -> None:
    if fault:
        raise Fault(pointer, fault)
