"""What a certificate claims, derived from its own rules: level, counts, coverage, headline.

`certificate` writes these; `verification` derives them again from a file and compares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_adapter.contract.operators import DTYPES, OPERATORS
from vllm_adapter_conformance.base.rule import LEVELS

Document = Mapping[str, Any]
GOOD = ("pass", "waived")
KINDS = ("pass", "fail", "not_declared", "waived", "blocked")


def counts(rules: Sequence[Document]) -> dict[str, int]:
    """Cases by outcome."""
    found = Counter(case["outcome"] for rule in rules for case in rule["cases"])
    found["not_declared"] = sum(len(rule["not_declared"]) for rule in rules)
    return {kind: found[kind] for kind in KINDS}


def level_reached(
    rules: Sequence[Document], asked: str, needed: Mapping[str, Sequence[str]]
) -> str | None:
    """The highest level up to `asked` whose needed rules, and those below it, have all held.

    `needed` is the must-pass list. A rule with no case but some that are not declared holds.
    """
    by_id = {rule["rule"]: rule for rule in rules}
    reached = None
    for level in LEVELS[: LEVELS.index(asked) + 1]:
        wanted = [by_id.get(id) for id in needed.get(level, ())]
        if not wanted or not all(rule is not None and holds(rule) for rule in wanted):
            break
        reached = level
    return reached


def holds(rule: Document) -> bool:
    """Whether every case of a rule has passed or is waived, and there is something to say."""
    cases = rule["cases"]
    return bool(cases or rule["not_declared"]) and all(c["outcome"] in GOOD for c in cases)


def coverage(rules: Sequence[Document]) -> dict[str, dict[str, str]]:
    """For each operator and dtype how its rule `L2.<op>.correct` went: the worst of its cases."""
    by_id = {rule["rule"]: rule for rule in rules}
    found = {}
    for op in OPERATORS:
        rule = by_id.get(f"L2.{op}.correct")
        if rule is not None:
            found[op] = {dtype: _state(rule, dtype) for dtype in DTYPES}
    return found


def _state(rule: Document, dtype: str) -> str:
    outcomes = {
        case["outcome"] for case in rule["cases"] if case["case"].partition("-")[0] == dtype
    }
    if not outcomes:
        return "not_declared"
    if outcomes <= set(GOOD):
        return "waived" if "waived" in outcomes else "pass"
    return "fail"


def emulated(document: Document) -> bool:
    """Whether the run was on an emulated device: the adapter's own, or one that stood in."""
    device = document["device"]
    return bool(document["adapter"]["emulated"] or (device and "emulated_by" in device))


def badge(document: Document) -> str | None:
    """The level, where there is one to show off."""
    if document["emulated"] or document["grade"] != "release":
        return None
    reached: str | None = document["level_reached"]
    return reached


def headline(document: Document) -> str:
    """One sentence: level, device, coverage, counts, and what takes away from it."""
    name, asked, reached = (
        document["adapter"]["name"],
        document["level_asked"],
        document["level_reached"],
    )
    device = document["device"]
    where = f" on {device['name']}" if device else ""
    level = f"reaches {reached}" if reached == asked else f"does not reach {asked}"
    if reached not in (None, asked):
        level += f" (it reaches {reached})"
    found = document["counts"]
    run = sum(found[kind] for kind in ("pass", "fail", "waived", "blocked"))
    parts = [*_coverage_words(document["coverage"]), f"{found['pass']} of {run} cases pass"]
    for kind, words in (("waived", "waived"), ("blocked", "blocked"), ("fail", "fail")):
        if found[kind]:
            parts.append(f"{found[kind]} {words}")
    share = _worst_share(document["rules"])
    if share is not None:
        parts.append(f"largest error {min(share, 1e9):.2g} of its budget")
    return f"{name} {level}{where}: {', '.join(parts)}{_reservations(document)}"


def _coverage_words(found: Mapping[str, Mapping[str, str]]) -> list[str]:
    ops = [op for op, states in found.items() if any(s in GOOD for s in states.values())]
    dtypes = {d for op in ops for d, state in found[op].items() if state in GOOD}
    cells = sum(state in GOOD for states in found.values() for state in states.values())
    if not found:
        return []
    text = f"{len(ops)} of {len(found)} operators x {len(dtypes)} dtypes"
    return [text if cells == len(ops) * len(dtypes) else f"{text} ({cells} pairs)"]


def _worst_share(rules: Sequence[Document]) -> float | None:
    shares = [case["share"] for rule in rules for case in rule["cases"]]
    return max((share for share in shares if share is not None), default=None)


def _reservations(document: Document) -> str:
    notes = []
    if document["emulated"]:
        notes.append(_emulation(document["device"]))
    elif document["device"] is None and "tested_on" in document["adapter"]:
        notes.append(_hardware(document["adapter"]["tested_on"]))
    elif is_stand_in(document):
        notes.append("the CPU stands in for the device: this says nothing of a chip")
    if "VA_CAPABILITY" in document["settings"]:
        notes.append("by a descriptor that VA_CAPABILITY named")
    if document["grade"] == "development":
        notes.append("development grade")
    return f" ({'; '.join(notes)})" if notes else ""


def _emulation(device: Document | None) -> str:
    by = (device or {}).get("emulated_by")
    owner = f"by {by['name']} in place of {(device or {})['torch']}" if by else "device"
    return f"emulated {owner}: this says nothing of a chip"


def _hardware(tested: Sequence[str]) -> str:
    return f"run on hardware: {', '.join(tested)} alone" if tested else "not run on hardware"


def is_stand_in(document: Document) -> bool:
    """Whether the CPU ran the cases of an adapter that is not for CPUs."""
    device = document["device"]
    return (
        bool(device) and device.get("torch") == "cpu" and "cpu" not in document["adapter"]["name"]
    )
