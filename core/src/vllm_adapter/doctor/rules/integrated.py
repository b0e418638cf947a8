"""Memory that device and host share, and boxes with an integrated GPU alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.doctor.finding import Evidence, Finding, Severity
from vllm_adapter.doctor.rule import Box, Rule, finding


def _unified(box: Box) -> Iterator[Finding]:
    shared = [
        one
        for one in box.facts.accelerators
        if one.unified_memory or re.search(r"MI300A|\bGB\d{2,3}\b|\bGH200\b", one.name or "")
    ]
    own = [one for one in box.facts.accelerators if one.memory_nodes]
    found = shared or own
    if found and not all(one.integrated for one in found):
        name = found[0].name or f"{found[0].vendor} device"
        yield finding(
            "VA1906",
            [Evidence(f"{name} ({len(found)} of them)", found[0].source)],
            f"{name}: "
            + (
                "the host's memory and the device's are one: count it once"
                if shared and not own
                else "its memory shows as NUMA nodes without CPUs; never bind threads to these"
            ),
            severity=Severity.NOTE,
        )


def _integrated_only(box: Box) -> Iterator[Finding]:
    devices = box.facts.accelerators
    if (
        devices
        and devices[0].source == "lspci"
        and not box.says(r"^(?:0000:)?(?!00:)\w\w:\w\w\.\d ")
    ):
        return  # nothing behind a bridge is listed: the list was cut
    if devices and all(one.integrated for one in devices):
        names = ", ".join(dict.fromkeys(one.name or one.vendor for one in devices))
        yield finding(
            "VA1907",
            [Evidence(names, devices[0].source)],
            f"{names}: an integrated GPU, which uses system memory and is not taken for an "
            "accelerator; nothing else is here",
            severity=Severity.WARNING,
        )


RULES: Final = (
    Rule("VA1906", _unified),
    Rule("VA1907", _integrated_only),
)
