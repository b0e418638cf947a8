"""The section `performance` in a few lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_adapter.cli.output import clean
from vllm_adapter_conformance.performance.figures import Figure
from vllm_adapter_conformance.performance.roofline import spell_rate, spell_seconds


def summary(section: Mapping[str, Any]) -> Iterator[str]:
    """The device's rates, the shares of the large shapes by phase, the load."""
    best: dict[str, Figure] = {}
    for rate in section["rates"]:
        if rate["beyond_caches"] is not False:
            key = " ".join(filter(None, (rate["what"], rate["dtype"])))
            found = Figure.from_json(rate["rate"])
            if key not in best or found.median > best[key].median:
                best[key] = found
    if best:
        yield "device: " + ", ".join(f"{key} {spell_rate(f)}" for key, f in best.items())
    for phase in ("decode", "prefill"):
        large = [
            (share["share"]["median"], f"{share['operator']} {share['dtype']}")
            for share in section["shares"]
            if share["phase"] == phase and share["size"] == "large"
        ]
        if large:
            low, high = min(large), max(large)
            yield (
                f"{phase}, large shapes: {low[0]:.2g} ({low[1]}) to {high[0]:.2g} ({high[1]}) "
                "of the roofline"
            )
    if section["baseline"] is not None:
        yield "baseline: " + ", ".join(
            f"{section['baseline'][kind]} {kind.replace('_', ' ')}"
            for kind in ("kept", "rose", "fell", "not_resolved", "not_compared")
        )
    load = section["endurance"]
    if load is not None:
        phases = ", ".join(
            f"{phase} p50 {spell_seconds(row['p50'])} p99 {spell_seconds(row['p99'])}"
            for phase, row in load["latency_s"].items()
            if row["p50"] is not None
        )
        yield clean(
            f"load: {load['minutes']:.3g} of {load['minutes_needed']:g} minutes, "
            f"{load['rounds']} steps, {load['tokens_per_s']:.3g} tokens/s, "
            f"{load['probes']} checks; {phases}"
        )
