"""Certificates of runs that never were: every rule of a level, with chosen outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.certificate import mustpass
from vllm_adapter_conformance.certificate.document import build
from vllm_adapter_conformance.certificate.fingerprint import Fingerprint, Tested
from vllm_adapter_conformance.certificate.parts import CORE, SUITE, digests, over, packages
from vllm_adapter_conformance.certificate.records import normal
from vllm_adapter_conformance.judge.outcome import Result, failed, passed
from vllm_adapter_conformance.performance.length import minutes_needed
from vllm_adapter_conformance.plan.suite import SuiteItem, SuitePlan, in_order, levels_up_to
from vllm_adapter_conformance.rules import registered

DTYPES = ("float16", "float32")

Outcome = Callable[[str, str], str]
"""Of a rule's id and a case's: pass, fail, or not_declared."""


def case_ids(rule: str) -> list[str]:
    """The case ids of a rule: those that its suite knows, else one for each of two dtypes."""
    known = mustpass.committed().cases.get(rule)
    return sorted(known) if known else [f"{dtype}-x" for dtype in DTYPES]


def endurance(target: Target) -> dict[str, Any]:
    """What a load that ran as long as the level asks for has measured."""
    minutes = minutes_needed(target)
    counts = dict.fromkeys(("rounds", "operator_calls", "tokens", "preempted", "probes"), 1)
    run = {"minutes_needed": minutes, "minutes": minutes, "workers": ["float32"], "streams": 0}
    load = {**run, **counts, "tokens_per_s": 1.0, "latency_s": {}, "memory": {}}
    return {"endurance": load, "threads": 1, "torch": "2.11"}


def made(
    target: Target,
    level: str = "L2",
    outcome: Outcome = lambda rule, case: "pass",
    *,
    facts: Mapping[str, Any] | None = None,
    previews: bool = False,
) -> dict[str, Any]:
    """A release-grade certificate. `facts` is what the run saw of the device."""
    rules = [
        rule
        for rule in in_order(registered().values())
        if rule.level in levels_up_to(level) and (previews or not rule.preview)
    ]
    items: list[SuiteItem] = []
    absent: dict[str, list[NotDeclaredCase]] = {}
    results: dict[str, Result] = {}
    for rule in rules:
        for id in case_ids(rule.id):
            how = outcome(rule.id, id)
            item = SuiteItem(rule, Case(id))
            if how == "not_declared":
                absent.setdefault(rule.id, []).append(NotDeclaredCase(id, "/operators", "no"))
                continue
            items.append(item)
            if how == "fail":
                results[item.id] = failed(item, Failure("a", "b"), 0.1, None)
            else:
                seen = facts if rule.id == "L1.device.identity" else None
                load = endurance(target) if rule.id == "L5.endurance.load" else None
                results[item.id] = passed(
                    item, Observation(0.5, facts=seen, figures=load), 0.1, None
                )
    files = fingerprint_of(target)
    return build(target, level, SuitePlan(rules, items, absent), results, files, {})


def fingerprint_of(target: Target) -> Fingerprint:
    """Of the files of this tree, as if all were as they were installed, and core was loaded."""
    record = target.record
    assert record.path is not None
    first = "__init__.py"
    loaded = {f"vllm_adapter/{first}": _digests(CORE)[first]}
    parts = {
        name: Tested("0.1.0", over(_digests(name)), loaded if name == CORE else {})
        for name in packages()
    }
    adapter = digests(record.path)
    parts[normal(record.distribution)] = Tested(record.version, over(adapter), {})
    suite, core = over(_digests(SUITE)), over(_digests(CORE))
    return Fingerprint(adapter, suite, core, None, distributions=parts)


@cache
def _digests(name: str) -> Mapping[str, str]:
    return digests(packages()[name])
