"""What a level needs and a descriptor lacks, said before anything runs, and all of it at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vllm_adapter.discovery.library_devices import library_file
from vllm_adapter.discovery.probe.library import check_library
from vllm_adapter.errors import LibraryError
from vllm_adapter.settings import Settings
from vllm_adapter_conformance.base.rule import OPERATORS_LEVEL
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.certificate.claims import PASS, core_gaps
from vllm_adapter_conformance.certificate.mustpass import Group, RuleList
from vllm_adapter_conformance.plan.suite import NO_CASE, SuitePlan, levels_up_to

PLAIN_WORK: Final[Mapping[str, str]] = {
    "unary": "copy, abs",
    "binary": "add, sub, mul, eq, ne, le, and, or",
    "reduce": "all",
    "fill": "fill",
}
"""Functions of a C library without which no level from L2 on can be judged: the work of each that
the suite and every model ask for."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why a level cannot be reached, before anything has run. `below` is the highest that can."""

    level: str
    below: str | None
    sentences: tuple[str, ...]


def shortfall(target: Target, plan: SuitePlan, asked: str, lists: RuleList) -> Shortfall | None:
    """The first level up to `asked` whose core has no case, with all that it lacks; else None.

    A level above that one lacks at least as much. The plan is of all cases up to `asked`.
    """
    rules = _as_if_passed(plan)
    below = None
    for level in levels_up_to(asked):
        gaps = [(group, core_gaps(rules, group)) for group in lists.core.get(level, ())]
        # Groups are in order: what a later one lacks mostly follows from the first.
        found = [_words(group, gap, rules) for group, gap in gaps if gap is not None][:1]
        if level == OPERATORS_LEVEL:
            found += _plain_work(target)
        if found:
            return Shortfall(level, below, tuple(found))
        below = level
    return None


def sentences(short: Shortfall) -> Iterator[str]:
    """The shortfall in words: what is lacking, then how far the adapter can come."""
    for sentence in short.sentences:
        yield f"{short.level} needs {sentence}"
    highest = short.below or "no level"
    yield f"{highest} is the highest that this adapter can reach on this machine"


def _as_if_passed(plan: SuitePlan) -> dict[str, dict[str, Any]]:
    """The rules of a certificate in which every case of the plan has passed."""
    return {
        rule.id: {
            "cases": [
                {"case": item.case.id, "outcome": PASS}
                for item in plan.of_rule(rule.id)
                if item.case.id != NO_CASE
            ],
            "not_declared": plan.not_declared.get(rule.id, ()),
        }
        for rule in plan.rules
    }


def _words(
    group: Group, gap: tuple[str, str, list[str]], rules: Mapping[str, dict[str, Any]]
) -> str:
    what, dtype, lacking = gap
    wanted = " or ".join(f"{one} ({_names(ids)})" for one, ids in group.items())
    nearest = f"; nearest is {what}" if len(group) > 1 else ""
    where = f", in {dtype}" if dtype else ""
    # What follows from the operators says nothing where one of those is lacking.
    operators = [one for one in lacking if _is_operator(one)] or lacking
    lacks = ", ".join(f"{_names([one])}{_reason(rules, one, dtype)}" for one in operators)
    return f"{wanted}{nearest}{where}, of which the descriptor lacks {lacks}"


def _is_operator(wanted: str) -> bool:
    name = wanted.removesuffix("[DTYPE]")
    return name.startswith("L2.") and name.endswith(".correct")


def _names(wanted: Sequence[str]) -> str:
    """Rules in plain words: the operator of a rule about one, else the rule."""
    return ", ".join(
        one.split(".")[1] if _is_operator(one) else one.removesuffix("[DTYPE]") for one in wanted
    )


def _reason(rules: Mapping[str, dict[str, Any]], wanted: str, dtype: str) -> str:
    """Why a rule has no such case, in brackets, as its first case that is not declared says."""
    id, _, case = wanted.removesuffix("]").partition("[")
    for one in rules[id]["not_declared"] if id in rules else ():
        of_dtype = wanted.endswith("[DTYPE]") and one.id.partition("-")[0] == dtype
        if of_dtype or case in ("", one.id):
            absent = one.reason.startswith(f"{_names([wanted])} is not declared")
            return f" ({one.pointer}: no entry)" if absent else f" ({one.reason})"
    return ""


def _plain_work(target: Target) -> list[str]:
    """What a C library leaves NULL of the plain tensor work that L2 stands on."""
    manifest = target.record.manifest
    library = library_file(manifest, Settings.from_environ()) if manifest else None
    if library is None:
        return []
    try:
        offered = check_library(library).functions
    except LibraryError:  # L1.device.open says so
        return []
    missing = [name for name in PLAIN_WORK if name not in offered]
    if not missing:
        return []
    needed = ", ".join(f"{name} ({work})" for name, work in PLAIN_WORK.items())
    return [
        f"plain tensor work of a C library: {needed}; {library.name} leaves "
        f"{', '.join(missing)} NULL"
    ]
