"""A certificate tried again: by cases of our own, on a device that must be the one it names.

What to run is drawn from the installed descriptor by a new seed, and not from the file: cases that
somebody took out of it are found, those that somebody put in are no such cases, and nobody could
know which would be drawn.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from vllm_adapter.discovery.records import AdapterRecord
from vllm_adapter_conformance.base.rule import LEVELS
from vllm_adapter_conformance.base.target import BUDGET_S, Target
from vllm_adapter_conformance.certificate.against import loaded_faults
from vllm_adapter_conformance.certificate.claims import GOOD, holds
from vllm_adapter_conformance.certificate.machine import device_of
from vllm_adapter_conformance.certificate.parts import Files, suite_digest
from vllm_adapter_conformance.certificate.verification import first, older
from vllm_adapter_conformance.judge.journal import Ran
from vllm_adapter_conformance.plan.find_target import find_target, fresh_seed
from vllm_adapter_conformance.plan.suite import SuiteItem, SuitePlan, make_plan
from vllm_adapter_conformance.rules import registered

Document = Mapping[str, Any]
DRAWN: Final = "-drawn-"
"""In the id of a case whose content the seed decides; it holds the boundaries of the space."""
ALIKE: Final = 0.02
"""By how much two figures of one device's memory may differ."""


@dataclass(frozen=True)
class Replay:
    """What is to be run, and what is wrong already."""

    target: Target
    emulate: str | None
    """Whose device stands in, as `certify --emulate` has it."""
    items: Sequence[str] = ()
    """Ids of items, by `target.seed`."""
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def prepare(document: Document, count: int, device: int) -> Replay:
    """Compares machine and cases, and draws `count` items. Nothing of a device is opened.

    Raises:
        AdapterError, InputError: as `find_target`: the level cannot be run here.
    """
    emulate = _emulate(document)
    found = find_target(
        document["adapter"]["name"],
        document["level_asked"],
        device=device,
        seed=fresh_seed(),
        budget=_budget(document),
        emulate=emulate,
    )
    target = replace(found, seed=fresh_seed()) if found.seed == document["seed"] else found
    faults = [*_machine_faults(document, target)]
    notes: list[str] = []
    if older(document):
        faults.append(
            f"its format ({document['schema'].rpartition('/')[2]}) does not say which files took "
            "part, and cannot be replayed: certify again"
        )
    if faults:
        return Replay(target, emulate, (), faults)
    level = document["level_asked"]
    theirs = replace(target, seed=document["seed"], budget=_budget(document))
    differing = [*_case_faults(document, make_plan(theirs, level, registered()))]
    if document["suite"]["files_sha256"] == suite_digest():
        faults += first("its cases are not those of the installed descriptor", differing)
    else:
        notes += first("another suite has other cases", differing)
    plan = make_plan(target, level, registered())
    listed = {rule["rule"] for rule in document["rules"]}
    return Replay(target, emulate, _draw(plan, listed, count), faults, notes)


def outcome_faults(document: Document, outcomes: Mapping[str, str | None]) -> list[str]:
    """What a replay's outcomes say against the certificate; None is an item that did not run.

    A drawn case is another one than the certificate's of the same name: there its rule counts.
    """
    found = []
    rules = {rule["rule"]: rule for rule in document["rules"]}
    for id, now in outcomes.items():
        name, _, case = id.removesuffix("]").partition("[")
        rule = rules.get(name)
        was = None
        if rule is not None and DRAWN not in case:
            was = next((c["outcome"] for c in rule["cases"] if c["case"] == case), None)
        if now is None:
            found.append(f"{id} did not run")
        elif was is not None and was != "blocked" and was != now:
            found.append(f"{id} was {was!r} and is {now!r} now")
        elif was is None and now not in GOOD and (rule is None or holds(rule)):
            found.append(f"{id} is {now!r} now, and its rule held")
    return found


def ran_faults(document: Document, record: AdapterRecord, ran: Ran) -> list[str]:
    """What the processes of a replay say against the certificate: their files, and the memory."""
    files = Files.of(record)
    found = [*ran.silent, *loaded_faults(document, files.sort(ran.files), files)]
    was = (document["device"] or {}).get("memory_bytes")
    now = ran.device.get("memory_bytes")
    if was is not None and now is not None and abs(was - now) > ALIKE * max(was, now):
        found.append(f"the device had {was:,} bytes of memory, and has {now:,} here")
    return found


def _emulate(document: Document) -> str | None:
    lender = (document["device"] or {}).get("emulated_by")
    if lender is None:
        return None
    file = (document["descriptor"] or {"path": ""})["path"].rpartition("/")[2]
    return f"{lender['name']}:{file.removesuffix('.json')}"


def _budget(document: Document) -> float:
    return float(document.get("sampling", {}).get("budget_s", BUDGET_S))


def _machine_faults(document: Document, target: Target) -> Iterator[str]:
    """How this machine's device, driver and torch differ from the certificate's."""
    theirs, ours = document["device"], device_of(target, {})
    if (theirs is None) != (ours is None):
        there, here = ("no device" if one is None else one["name"] for one in (theirs, ours))
        yield f"it ran on {there}, and its level on {here} here"
        return
    if theirs is not None and ours is not None:
        kinds = [str(one["torch"]).partition(":")[0] for one in (theirs, ours)]
        pairs = [
            ("device", theirs["name"], ours["name"]),
            ("device's own name", theirs.get("reported_name"), ours["reported_name"]),
            ("arch", theirs.get("arch"), ours["arch"]),
            ("torch device type", *kinds),
        ]
        was, now = theirs.get("drivers", {}), ours["drivers"]
        pairs += [
            (f"driver ({name})", was.get(name), now.get(name))
            for name in sorted(was.keys() | now.keys())
        ]
        yield from (_other(*pair) for pair in pairs if pair[1] != pair[2])
    torch = target.host.torch.version if target.host.torch else None
    if document["environment"].get("torch") != torch:
        yield _other("torch", document["environment"].get("torch"), torch)


def _other(what: str, was: object, now: object) -> str:
    there, here = ("nothing" if one is None else str(one) for one in (was, now))
    return f"another machine: its {what} is {there}, and {here} here"


def _case_faults(document: Document, plan: SuitePlan) -> Iterator[str]:
    """Cases that the file lacks or has too many, by the plan that its own seed gives."""
    listed = {
        (rule["rule"], case["case"], kind)
        for rule in document["rules"]
        for kind in ("cases", "not_declared")
        for case in rule[kind]
    }
    planned = {(item.rule.id, item.case.id, "cases") for item in plan.items}
    for id, cases in plan.not_declared.items():
        planned |= {(id, case.id, "not_declared") for case in cases}
    words = {"cases": "", "not_declared": " among those not declared"}
    for rule, case, kind in sorted(planned - listed):
        yield f"it lacks {rule}[{case}]{words[kind]}"
    for rule, case, kind in sorted(listed - planned):
        yield f"there is no such case as {rule}[{case}]{words[kind]}"


def _draw(plan: SuitePlan, listed: set[str], count: int) -> list[str]:
    """Ids of items to run: half of them cases at boundaries, as far as there are, then others.

    One of them opens the device, if any of the plan does: it tells its memory and its files.
    """
    chance = secrets.SystemRandom()
    of_drawn = _mixed(chance, [item for item in plan.items if DRAWN in item.case.id], listed)
    others = _mixed(chance, [item for item in plan.items if DRAWN not in item.case.id], listed)
    half = max(-(-count // 2), count - len(others))
    chosen = of_drawn[:half]
    chosen += others[: count - len(chosen)]
    if all(item.rule.level == LEVELS[0] for item in chosen):
        chosen[-1:] = [item for item in others if item.rule.level != LEVELS[0]][:1] or chosen[-1:]
    return [item.id for item in chosen]


def _mixed(
    chance: secrets.SystemRandom, items: Sequence[SuiteItem], listed: set[str]
) -> list[SuiteItem]:
    """By chance; items of rules that the file does not list come first: it may have lost them."""
    mixed = chance.sample(items, len(items))
    return sorted(mixed, key=lambda item: item.rule.id in listed)
