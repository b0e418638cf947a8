"""The device that ran the cases, and its driver: what is certified, and what a replay compares."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm_adapter.hostfacts._tree import Tree
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_doctor.live.drivers import read_drivers


def device_of(
    target: Target, facts: Mapping[str, Any], seen: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """The target's device as a certificate has it: by its descriptor, and as the run saw it.

    `facts` are what its own process said of it at its end, `seen` what `L1.device.identity` saw.
    """
    device, capability = target.device, target.capability
    if device is None:
        return None
    known = capability.identity.name if capability else None
    found: dict[str, Any] = {
        "name": known or device.name,
        "torch": device.torch,
        "arch": device.arch,
        "reported_name": device.name,
        "drivers": drivers(target),
        **facts,
    }
    if capability is not None:
        identity = capability.identity
        found |= {
            "arch": identity.arch,
            "vendor": identity.vendor,
            "torch_type": identity.torch_type or "",
        }
    if target.emulator is not None:
        found["emulated_by"] = target.emulator.described()
    if seen is not None:
        found["seen"] = dict(seen)
    return found


def drivers(target: Target) -> dict[str, str]:
    """Versions of the drivers and toolkits on this machine, by component, as their files say."""
    found = read_drivers(Tree(Path("/")), target.host.modules, os.environ)
    return {one.component: one.version for one in sorted(found, key=lambda one: one.component)}
