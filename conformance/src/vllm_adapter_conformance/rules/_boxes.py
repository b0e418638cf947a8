"""Boxes of many vendors as host facts, on which every adapter's probe is tried."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from vllm_adapter.contract.manifest import Manifest
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter.hostfacts.known_vendors import VENDORS


@dataclass(frozen=True, slots=True)
class SimulatedHost:
    """One machine. `devices` are those that it has, by the name that their adapter should have.

    Graphics inside a processor are none. `origin` says what the facts are from.
    """

    id: str
    origin: str
    devices: Mapping[str, int]
    facts: HostFacts

    def of(self, manifest: Manifest) -> int | None:
        """How many devices are this adapter's, by its name or else its vendor; None: no matter."""
        if manifest.name in self.devices:
            return self.devices[manifest.name]
        vendor = manifest.vendor.casefold()
        mine = [n for n in self.devices if n in VENDORS and VENDORS[n].name.casefold() == vendor]
        return self.devices[mine[0]] if mine else None


@cache
def boxes() -> Mapping[str, SimulatedHost]:
    """All of them by their ids."""
    text = resources.files(__package__).joinpath("boxes.json").read_text(encoding="utf-8")
    found = (
        SimulatedHost(raw["id"], raw["origin"], raw["devices"], HostFacts.from_json(raw["facts"]))
        for raw in json.loads(text)
    )
    return {box.id: box for box in found}
