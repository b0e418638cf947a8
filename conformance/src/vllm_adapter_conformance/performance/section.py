"""The certificate's section `performance`, of what the cases of L5 measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vllm_adapter_conformance.base.rule import Figures
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.performance.baseline import (
    FELL,
    KEPT,
    NOT_COMPARED,
    NOT_RESOLVED,
    ROSE,
    conditions,
    read_baseline,
)

VERDICTS = (KEPT, ROSE, FELL, NOT_RESOLVED, NOT_COMPARED)


def performance(target: Target, measured: Iterable[Figures]) -> dict[str, Any] | None:
    """The section, from the figures of all cases; None where no case has measured anything."""
    rows = list(measured)
    if not rows:
        return None
    first: dict[str, Any] = {}
    for row in rows:
        for name in ("threads", "torch", "clock", "cache_bytes", "launch", "endurance"):
            if name in row:
                first.setdefault(name, row[name])
    shares = [share for row in rows for share in row.get("shares", ())]
    section: dict[str, Any] = {
        "conditions": conditions(
            target, first.get("torch", "unknown"), first.get("threads", 0)
        ).to_json(),
        "clock": first.get("clock"),
        "cache_bytes": first.get("cache_bytes"),
        "launch": first.get("launch"),
        "rates": [rate for row in rows for rate in row.get("rates", ())],
        "shares": shares,
        "baseline": _baseline(target, shares),
        "endurance": first.get("endurance"),
        "faults": [fault for row in rows for fault in row.get("faults", ())],
    }
    return section


def _baseline(target: Target, shares: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    if target.baseline is None:
        return None
    verdicts = [share["baseline"]["verdict"] for share in shares if share["baseline"]]
    old = read_baseline(target.baseline, target.record.name)
    counts = {verdict.replace(" ", "_"): verdicts.count(verdict) for verdict in VERDICTS}
    return old.described() | counts
