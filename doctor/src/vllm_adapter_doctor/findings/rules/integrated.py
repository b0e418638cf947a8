"""Memory that device and host share, and boxes with an integrated GPU alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vllm_adapter.contract.finding import Evidence
from vllm_adapter_doctor.findings.host import ExaminedHost
from vllm_adapter_doctor.findings.rule import Data, RuleHit


def unified(box: ExaminedHost, data: Data) -> Iterator[RuleHit]:
    """A device that shares the host's memory, or shows its own as nodes of the host."""
    shared = [
        one
        for one in box.devices
        if one.unified_memory or re.search(data["names"], one.name or "")
    ]
    own = [one for one in box.devices if one.reported and one.reported.memory_nodes]
    found = shared or own
    if found and not all(one.integrated for one in found):
        name = found[0].name or f"{found[0].vendor} device"
        yield RuleHit(
            [Evidence(f"{name} ({len(found)} of them)", found[0].source)],
            {"name": name},
            "shared" if shared and not own else "nodes",
        )


def alone(box: ExaminedHost, _: Data) -> Iterator[RuleHit]:
    """Nothing but GPUs of processors."""
    devices = box.facts.accelerators
    if (
        devices
        and devices[0].source == "lspci"
        and not box.has_line(r"^(?:0000:)?(?!00:)\w\w:\w\w\.\d ")
    ):
        return  # nothing behind a bridge is listed: the list was cut
    if devices and all(one.integrated for one in devices):
        names = ", ".join(dict.fromkeys(one.name or one.vendor for one in devices))
        yield RuleHit([Evidence(names, devices[0].source)], {"names": names})
