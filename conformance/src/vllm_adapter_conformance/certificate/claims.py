"""What a certificate claims, derived from its own rules: level, counts, coverage, headline.

`certificate` writes these; `verification` derives them again from a file and compares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_adapter.contract.operators import DTYPES, OPERATORS
from vllm_adapter_conformance.base.rule import LEVELS
from vllm_adapter_conformance.certificate.mustpass import Group, RuleList

Document = Mapping[str, Any]
PASS = "pass"
GOOD = (PASS, "waived")
ANY_CPU = "Any CPU"
"""The vendor of a descriptor for CPUs of whatever make."""
SIMULATED_BY = "vllm-adapter"
"""The vendor in the table of the simulated accelerator's C library."""
_DTYPE = "[DTYPE]"
KINDS = ("pass", "fail", "not_declared", "waived", "blocked")


def counts(rules: Sequence[Document]) -> dict[str, int]:
    """Cases by outcome."""
    found = Counter(case["outcome"] for rule in rules for case in rule["cases"])
    found["not_declared"] = sum(len(rule["not_declared"]) for rule in rules)
    return {kind: found[kind] for kind in KINDS}


def level_reached(rules: Sequence[Document], asked: str, lists: RuleList) -> str | None:
    """The highest level up to `asked` that is reached, and those below it too.

    A level is reached where every rule that it needs has held, and its core has run.
    """
    by_id = {rule["rule"]: rule for rule in rules}
    reached = None
    for level in LEVELS[: LEVELS.index(asked) + 1]:
        wanted = [by_id.get(id) for id in lists.rules.get(level, ())]
        if not wanted or not all(rule is not None and holds(rule) for rule in wanted):
            break
        if any(core_gaps(by_id, group) for group in lists.core.get(level, ())):
            break
        reached = level
    return reached


def holds(rule: Document) -> bool:
    """Whether every case of a rule has passed or is waived, and there is something to say.

    A rule whose cases are all not declared holds: whether it may be so is the core's to say.
    """
    cases = rule["cases"]
    return bool(cases or rule["not_declared"]) and all(c["outcome"] in GOOD for c in cases)


def core_gaps(rules: Mapping[str, Document], group: Group) -> tuple[str, str, list[str]] | None:
    """Which alternative of a group is nearest to have run, in which dtype, and what it lacks.

    None where one has run. An alternative lists rules; `RULE[CASE]` asks for that case, and
    `RULE[DTYPE]` for cases of one dtype that all of those share (else the dtype is ""). A rule
    has run where a case of it passed: a waived failure shows nothing.
    """
    found: list[tuple[str, str, list[str]]] = []
    for what, wanted in group.items():
        shared = any(one.endswith(_DTYPE) for one in wanted)
        for dtype in DTYPES if shared else ("",):
            gaps = [one for one in wanted if not _has_run(rules, one, dtype)]
            if not gaps:
                return None
            found.append((what, dtype, gaps))
    return min(found, key=lambda one: len(one[2]) / len(group[one[0]]))


def _has_run(rules: Mapping[str, Document], wanted: str, dtype: str) -> bool:
    id, _, case = wanted.removesuffix("]").partition("[")
    passed = [c["case"] for c in rules[id]["cases"] if c["outcome"] == PASS] if id in rules else []
    if wanted.endswith(_DTYPE):
        return any(one.partition("-")[0] == dtype for one in passed)
    return case in passed if case else bool(passed)


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
    """Whether the run was on an emulated device: the adapter's own, one that stood in, or one
    behind which there is no hardware, whatever the manifest says."""
    device = document["device"]
    return bool(
        document["adapter"]["emulated"]
        or (device and "emulated_by" in device)
        or nothing_behind(document)
    )


def nothing_behind(document: Document) -> bool:
    """Whether the run saw that its device, by name no CPU, is the host's own memory and CPU.

    The process that had opened it had no device node open, or its library is the simulated one.
    """
    device = document["device"] or {}
    seen = device.get("seen")
    if seen is None or _is_cpu(device):
        return False
    return not seen["nodes"] or (seen["library"] or {}).get("vendor") == SIMULATED_BY


def badge(document: Document) -> str | None:
    """The level, where there is one to show off."""
    if emulated(document) or is_stand_in(document) or document["grade"] != "release":
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
    waived = _waived_words(document["rules"])
    return f"{name} {level}{where}: {', '.join(parts)}{waived}{_reservations(document)}"


def _waived_words(rules: Sequence[Document]) -> str:
    """Each waiver that covers a failure: which rule, until when, and where it is tracked."""
    found = {
        (rule["rule"], case["waiver"]["expires"], case["waiver"]["issue"]): None
        for rule in rules
        for case in rule["cases"]
        if case["outcome"] == "waived" and case["waiver"]
    }
    words = [f"{rule} until {day} ({issue})" for rule, day, issue in found]
    return f"; waived: {', '.join(words)}" if words else ""


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
    if emulated(document):
        notes.append(_emulation(document))
    elif document["device"] is None and "tested_on" in document["adapter"]:
        notes.append(_hardware(document["adapter"]["tested_on"]))
    elif is_stand_in(document):
        notes.append("the CPU stands in for the device: this says nothing of a chip")
    if "VA_CAPABILITY" in document["settings"]:
        notes.append("by a descriptor that VA_CAPABILITY named")
    if document["grade"] == "development":
        notes.append("development grade")
    return f" ({'; '.join(notes)})" if notes else ""


def _emulation(document: Document) -> str:
    device = document["device"] or {}
    by = device.get("emulated_by")
    if by is None and not document["adapter"]["emulated"] and nothing_behind(document):
        return "nothing but the host is behind the device: this says nothing of a chip"
    owner = f"by {by['name']} in place of {device['torch']}" if by else "device"
    return f"emulated {owner}: this says nothing of a chip"


def _hardware(tested: Sequence[str]) -> str:
    return f"run on hardware: {', '.join(tested)} alone" if tested else "not run on hardware"


def is_stand_in(document: Document) -> bool:
    """Whether the CPU ran the cases of a device that, by its descriptor, is another.

    Only a descriptor that says of itself that it is this CPU is one: torch's type `cpu`, the
    machine as its arch, and the processor's own name (or a generic one, where the system knows
    none). Older certificates do not have its identity: there the adapter's name has to do.
    """
    device, host = document["device"], document["host"]
    if not device or not _is_cpu(device):
        return False
    if "torch_type" not in device:
        return "cpu" not in document["adapter"]["name"]
    generic = f"Generic {host['machine']}"
    return not (
        device["torch_type"] == "cpu"
        and device["arch"] == host["machine"]
        and device["name"] == (host["cpu"] or generic)
        and (device["vendor"] == ANY_CPU or _named(device["vendor"], host["cpu"]))
    )


def _is_cpu(device: Document) -> bool:
    return str(device.get("torch")).partition(":")[0] == "cpu"


def _named(vendor: str, cpu: str | None) -> bool:
    """Whether the processor's name begins with the vendor's, as in Intel(R) Xeon(R)."""
    return (cpu or "").casefold().startswith(vendor.casefold())
