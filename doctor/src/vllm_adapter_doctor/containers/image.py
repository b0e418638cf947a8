"""What holds inside a container that is not started yet: the machine's devices and drivers.

The image brings torch and packages of its own. Which runtime its torch is built for is known where
its name says it, as in `vllm/vllm-openai:v0.11.0-cu129`; a driver that is too old for that runtime
is too old inside, too. A report may be of such a container, so that its torch counts where the
name says nothing.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from vllm_adapter.hostfacts.facts import HostFacts, TorchBuild
from vllm_adapter.hostfacts.known_vendors import VENDORS
from vllm_adapter.hostfacts.vendor_files import sections
from vllm_adapter_doctor.devices.driver_rules import unserved_runtimes


def facts_inside(facts: HostFacts, image: str, *, live: bool) -> HostFacts:
    """The facts of a box as a container of the image will have them."""
    torch = torch_of(image)
    if torch is None and not live:
        return facts
    return replace(facts, torch=torch, vllm=None, packages=())


def torch_of(image: str) -> TorchBuild | None:
    """The build that an image's name tells of: its runtime alone; None where it tells of none."""
    for vendor, pattern in sections("container", "image"):
        found, build = re.search(pattern, image), VENDORS[vendor].build
        if found and build:
            told: dict[str, Any] = {build: f"{found['major']}.{found['minor']}"}
            return TorchBuild(**told)
    return None


def image_notes(vendor: str, facts: HostFacts) -> tuple[str, ...]:
    """What an image may be too new for, where nothing says what it is built for."""
    return () if facts.torch else tuple(unserved_runtimes(vendor, facts))
