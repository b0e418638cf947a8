"""Reads the rules of the files of findings, strictly: one clear error for each fault.

Cheap enough for each run of the doctor: patterns are compiled when they are first tried, and what
only an author can get wrong is asked for by `faults` (see `doctor.faults`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final

from vllm_adapter.contract.codes import CODES, documents, fault, folded
from vllm_adapter.contract.finding import Severity
from vllm_adapter_doctor.findings.conditions import ALWAYS, FactCondition, read
from vllm_adapter_doctor.findings.host import MAX_EVIDENCE
from vllm_adapter_doctor.findings.rule import (
    FactMatcher,
    FindingCase,
    FindingRule,
    FindingSample,
    FunctionMatcher,
    RuleMatcher,
    TextMatcher,
    VersionMatcher,
)

_CASE: Final = {
    "name": str,
    "code": str,
    "cause": str,
    "action": str,
    "severity": str,
    "match": dict,
    "when": dict,
    "silent": bool,
    "seen": bool,
    "sample": str,
    "also": list,
    "live": bool,
}
_SHARED: Final = ("code", "cause", "action", "severity", "seen")
"""What a case takes from its rule where it does not say it."""
_LOOKS: Final[Mapping[str, Mapping[str, type]]] = {
    "pattern": {
        "pattern": str,
        "words": list,
        "unless": list,
        "only": list,
        "line_unless": str,
        "line_only": str,
        "debug": bool,
        "evidence": int,
        "variables": list,
        "value": str,
    },
    "function": {"function": str, "data": dict, "last": bool},
    "fact": {"fact": str, "quote": str},
    "releases": {"releases": dict, "facts": list},
}
"""What a rule may look for, by the field that says it, and the fields that go with it."""
_RELEASES: Final = {"left": list, "right": list, "part": str, "same": bool}
_FOLDER: Final = "vllm_adapter_doctor.findings.rules"
_TABLES: Final = frozenset({"codes", "conditions", "rules"})


@cache
def all_rules() -> tuple[FindingRule, ...]:
    """The rules of every kind, in the order of the files and in them.

    Raises:
        InputError: a file breaks a rule of this module.
    """
    return tuple(rule for kind in documents() for rule in rules_of(kind))


@cache
def rules_of(kind: str) -> tuple[FindingRule, ...]:
    """The rules of one file."""
    document = documents()[kind]
    if unknown := document.keys() - _TABLES:
        raise fault(f"{kind}.toml", f"the tables {', '.join(sorted(_TABLES))}", sorted(unknown))
    tables = document.get("rules", [])
    return tuple(_rule(f"{kind}.toml, rule {i + 1}", one) for i, one in enumerate(tables))


def _rule(where: str, table: Mapping[str, Any]) -> FindingRule:
    named = [name for name in _LOOKS if name in table]
    if len(named) != 1:
        raise fault(where, f"one of {', '.join(_LOOKS)}", named)
    fields = {**_LOOKS[named[0]], "when": dict}
    if "cases" in table:
        allowed = {name: _CASE[name] for name in _SHARED} | fields | {"cases": list}
        cases = tuple(_cases(where, table))
    else:
        allowed = _CASE | fields
        cases = (_case(where, {name: table[name] for name in _CASE.keys() & table.keys()}),)
    _typed(where, table, allowed)
    condition = read(table["when"], f"{where}, when") if "when" in table else ALWAYS
    if "cases" not in table:
        cases = (_without_condition(cases[0]),)
    look, last = _look(where, named[0], table), table.get("last", False)
    return FindingRule(where, look, cases, condition, last)


def _without_condition(case: FindingCase) -> FindingCase:
    """The only case of a rule: its condition is the rule's."""
    from dataclasses import replace

    return replace(case, when=ALWAYS)


def _cases(where: str, table: Mapping[str, Any]) -> Iterator[FindingCase]:
    shared = {name: table[name] for name in _SHARED if name in table}
    for number, one in enumerate(table["cases"]):
        yield _case(f"{where}, case {number + 1}", {**shared, **one})


def _case(where: str, table: Mapping[str, Any]) -> FindingCase:
    _typed(where, table, _CASE)
    silent = table.get("silent", False)
    for name in () if silent else ("code", "cause", "sample"):
        if not table.get(name, "").strip():
            raise fault(where, f"a text in {name}", table.get(name))
    code = table.get("code", "")
    if not silent and code not in CODES:
        raise fault(where, "a code that a table [codes.VAnnnn] describes", code)
    severity = table.get("severity", "error")
    if severity not in (one.value for one in Severity):
        raise fault(where, "error, warning or note in severity", severity)
    if unknown := set(table.get("also", ())) - CODES.keys():
        raise fault(where, "codes of the register in also", sorted(unknown))
    return FindingCase(
        name=table.get("name", ""),
        where=where,
        code=code,
        cause=folded(table.get("cause", "")),
        action=folded(table.get("action", "")),
        severity=Severity(severity),
        match=tuple((place, joined(text)) for place, text in table.get("match", {}).items()),
        when=_condition(where, table),
        silent=silent,
        seen=table.get("seen", True),
        sample=FindingSample(
            table.get("sample", "").rstrip("\n") + "\n",
            frozenset(table.get("also", ())),
            table.get("live", False),
        ),
    )


def _condition(where: str, table: Mapping[str, Any]) -> FactCondition:
    return read(table["when"], f"{where}, when") if "when" in table else ALWAYS


def _look(where: str, what: str, table: Mapping[str, Any]) -> RuleMatcher:
    if what == "pattern":
        words = _texts(where, table, "words")
        if not words or any(word != word.lower() for word in words):
            raise fault(where, "words, in small letters", list(words))
        return TextMatcher(
            words=words,
            pattern=joined(table["pattern"]),
            unless=tuple(map(joined, _texts(where, table, "unless"))),
            only=tuple(map(joined, _texts(where, table, "only"))),
            line_unless=joined(table.get("line_unless", "")),
            line_only=joined(table.get("line_only", "")),
            debug=table.get("debug", False),
            evidence=table.get("evidence", MAX_EVIDENCE),
            variables=_texts(where, table, "variables"),
            value=joined(table.get("value", "")),
        )
    if what == "function":
        module, _, name = table["function"].partition(".")
        try:
            function = getattr(import_module(f"{_FOLDER}.{module}"), name)
        except (ImportError, AttributeError):
            raise fault(where, f"MODULE.FUNCTION of {_FOLDER}", table["function"]) from None
        return FunctionMatcher(function, table.get("data", {}))
    if what == "fact":
        return FactMatcher(folded(table["fact"]), joined(table.get("quote", "")))
    releases = table["releases"]
    _typed(f"{where}, releases", releases, _RELEASES)
    left, right = (_texts(where, releases, side) for side in ("left", "right"))
    facts = _texts(where, table, "facts")
    if not (left and right and facts and releases.get("part")):
        raise fault(where, "left, right and part of releases, and facts", releases)
    return VersionMatcher(left, right, releases["part"], facts, releases.get("same", False))


def joined(pattern: str) -> str:
    """A pattern that a file breaks into lines, whose outer blanks do not count."""
    return "".join(line.strip() for line in pattern.splitlines())


def _texts(where: str, table: Mapping[str, Any], name: str) -> tuple[str, ...]:
    found: Sequence[object] = table.get(name, ())
    if not all(isinstance(one, str) for one in found):
        raise fault(where, f"texts in {name}", found)
    return tuple(map(str, found))


def _typed(where: str, table: Mapping[str, Any], fields: Mapping[str, type]) -> None:
    for name, value in table.items():
        if name not in fields:
            raise fault(where, f"one of the fields {', '.join(sorted(fields))}", name)
        if type(value) is not fields[name]:
            raise fault(where, f"{_SAID[fields[name]]} in {name}", value)


_SAID: Final = {
    str: "a text",
    list: "a list",
    dict: "a table",
    bool: "true or false",
    int: "a number",
}
