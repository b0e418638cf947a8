"""All rules over one box: findings without repetition, the worst first."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Final

from vllm_adapter.doctor.finding import Finding, Severity
from vllm_adapter.doctor.rule import MAX_EVIDENCE, Box, Rule
from vllm_adapter.doctor.text_rule import TextRule

KINDS: Final = (
    "driver",
    "driver_stack",
    "cuda_errors",
    "rocm",
    "ascend",
    "intel",
    "others",
    "build",
    "symbols",
    "availability",
    "libraries",
    "python_packages",
    "toolchain",
    "dtype",
    "container",
    "container_runtime",
    "platform",
    "visible",
    "health",
    "kernel_log",
    "memory",
    "topology",
    "integrated",
    "collectives",
    "system",
)
"""The modules of `doctor.rules`."""
_UNSEEN: Final = ("VA1508", "VA1507", "VA1503", "VA1111")
EXPLAINS: Final[Mapping[str, tuple[str, ...]]] = {
    "VA1101": ("VA1102", *_UNSEEN),
    "VA1102": _UNSEEN,
    "VA1103": ("VA1102", *_UNSEEN),
    "VA1110": ("VA1102", *_UNSEEN),
    "VA1111": ("VA1508", "VA1507", "VA1503"),
    "VA1106": ("VA1102", *_UNSEEN),
    "VA1116": ("VA1102", *_UNSEEN),
    "VA1201": ("VA1503", "VA1102", "VA1111"),
    "VA1202": ("VA1503", "VA1508", "VA1102", "VA1111"),
    "VA1104": ("VA1102", *_UNSEEN),
    "VA1114": ("VA1102", *_UNSEEN),
    "VA1205": ("VA1102", "VA1111"),
    "VA1220": ("VA1508",),
    "VA1215": ("VA1508",),
    "VA1404": ("VA1915",),
    "VA1407": ("VA1102", "VA1110", *_UNSEEN),
    "VA1405": ("VA1915", "VA1902"),
    "VA1406": _UNSEEN,
    "VA1502": ("VA1503", "VA1508"),
    "VA1603": ("VA1102", *_UNSEEN),
    "VA1808": ("VA1803", "VA1102", *_UNSEEN),
    "VA1902": ("VA1915",),
    "VA1910": ("VA1404",),
}
"""A finding of the first code is the cause of those: they are not said beside it."""
_ORDER: Final = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}


def diagnose(box: Box, others: Iterable[Finding] = ()) -> tuple[Finding, ...]:
    """Every finding and note, once each. `others` are those of adapters, which join ours."""
    found: dict[tuple[str, str], Finding] = {}
    ours = (one for rule in all_rules() for one in rule.check(box))
    for one in (*ours, *others):
        key = (one.code, one.cause)
        found[key] = _joined(found[key], one) if key in found else one
    codes = {one.code for one in found.values()}
    explained = {code for cause in codes for code in EXPLAINS.get(cause, ())}
    kept = [one for one in found.values() if one.code not in explained]
    return tuple(sorted(kept, key=lambda one: (_ORDER[one.severity], one.code)))


def all_rules() -> tuple[Rule | TextRule, ...]:
    """The rules of every kind, in the order of the kinds."""
    modules = [importlib.import_module(f"vllm_adapter.doctor.rules.{kind}") for kind in KINDS]
    return tuple(rule for module in modules for rule in module.RULES)


def _joined(one: Finding, other: Finding) -> Finding:
    evidence = tuple(dict.fromkeys((*one.evidence, *other.evidence)))[:MAX_EVIDENCE]
    worse = min(one.severity, other.severity, key=_ORDER.__getitem__)
    return Finding(one.code, worse, evidence, one.cause, one.action)
