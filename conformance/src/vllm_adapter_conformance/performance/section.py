"""The certificate's section `performance`, of what the cases of L5 measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vllm_adapter_conformance.base.rule import SPEED, Figures
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
from vllm_adapter_conformance.performance.length import ON_A_CPU, ON_A_DEVICE
from vllm_adapter_conformance.performance.work import work_of

VERDICTS = (KEPT, ROSE, FELL, NOT_RESOLVED, NOT_COMPARED)


def performance(target: Target, measured: Iterable[Figures]) -> dict[str, Any] | None:
    """The section, from the figures of all cases; None where no case has measured anything."""
    rows = list(measured)
    if not rows:
        return None
    first: dict[str, Any] = {}
    for row in rows:
        for name in ("threads", "torch", "cache_bytes", "launch", "endurance"):
            if name in row:
                first.setdefault(name, row[name])
    shares = [share for row in rows for share in row.get("shares", ())]
    section: dict[str, Any] = {
        "conditions": conditions(
            target, first.get("torch", "unknown"), first.get("threads", 0)
        ).to_json(),
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


def section_faults(document: Mapping[str, Any]) -> Iterator[str]:
    """What a certificate claims of L5 and its own figures do not support."""
    found = document.get("performance")
    if found is None:
        if document["level_reached"] == SPEED:
            yield f"it reaches {SPEED}, and has no section performance"
        return
    for row in found["shares"]:
        name = f"{row['operator']} {row['dtype']} {row['phase']} {row['size']}"
        try:
            work = work_of(row["operator"], row["sizes"])
        except KeyError as missing:
            yield f"the share of {name} lacks {missing}"
            continue
        if (work.bytes, work.flops) != (row["bytes"], row["flops"]):
            yield (
                f"the share of {name} is of {row['bytes']} bytes and {row['flops']} operations, "
                f"and its sizes give {work.bytes} and {work.flops}"
            )
    for row in found["shares"]:
        for part in ("seconds", "share"):
            ends = [row[part][end] for end in ("least", "low", "median", "high", "most")]
            if ends != sorted(ends):
                yield f"{part} of {row['operator']} are no figure: {ends}"
    load = found["endurance"]
    if document["level_reached"] != SPEED:
        return
    needed = ON_A_CPU if _on_cpu(document) else ON_A_DEVICE
    if load is None or load["minutes"] < needed or load["minutes_needed"] != needed:
        ran = "none" if load is None else f"{load['minutes']:g} minutes"
        yield f"it reaches {SPEED}, which needs {needed:g} minutes of load, and ran {ran}"


def _on_cpu(document: Mapping[str, Any]) -> bool:
    where = str((document["device"] or {}).get("torch"))
    return where.partition(":")[0] == "cpu" or bool(document["adapter"]["emulated"])
