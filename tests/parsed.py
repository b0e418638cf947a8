"""The reports that tests parse, and short forms of what was found in them."""

from __future__ import annotations

from pathlib import Path

from vllm_adapter.hostfacts.facts import HostFacts

REPORTS = Path(__file__).parent / "data" / "reports"


def versions(facts: HostFacts) -> dict[str, str]:
    """The first version told of each driver and toolkit."""
    return {driver.component: driver.version for driver in reversed(facts.drivers)}


def of(facts: HostFacts, source: str) -> list[tuple[str, int, str | None, str | None]]:
    """Vendor, index, name and arch of the devices that this source told of."""
    return [
        (one.vendor, one.index, one.name, one.arch)
        for one in facts.accelerators
        if one.source == source
    ]
