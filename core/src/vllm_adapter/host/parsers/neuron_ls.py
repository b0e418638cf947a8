"""`neuron-ls`: AWS Trainium and Inferentia, alone or as collect_env's "Neuron SDK Version".

A row names device, cores, memory and bus address; columns between them differ by version.
"""

from __future__ import annotations

import re
from typing import Final

from vllm_adapter.host.facts import Accelerator, HostFacts
from vllm_adapter.host.parsers._common import binary_size, normal_bdf
from vllm_adapter.host.text import Report

_HEAD: Final = re.compile(r"\|\s*NEURON\s*\|\s*NEURON\s*\|")
_INSTANCE: Final = re.compile(r"instance-type: ([a-z]+\d+\w*)\.")
_ROW: Final = re.compile(r"^\s*\|\s*(\d{1,3})\s*\|\s*\d{1,3}\s*\|(.*)$")
_MEMORY: Final = re.compile(r"\|?\s*(\d{1,4} GB)\s*\|")
_BDF: Final = re.compile(r"\b((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\b", re.I)


def parse(report: Report) -> HostFacts:
    """The devices of the table; `arch` is the instance's family, such as "trn1"."""
    if not report.first(_HEAD):
        return HostFacts()
    instance = report.first(_INSTANCE)
    found: dict[int, Accelerator] = {}
    for _, row in report.find(_ROW):
        memory, bdf = _MEMORY.search(row[2]), _BDF.search(row[2])
        if not (memory and bdf):
            continue
        found.setdefault(
            int(row[1]),
            Accelerator(
                "neuron",
                int(row[1]),
                "neuron-ls",
                bdf=normal_bdf(bdf[1]),
                arch=instance[1] if instance else None,
                memory_total_bytes=binary_size(memory[1]),
            ),
        )
    return HostFacts(accelerators=tuple(found[index] for index in sorted(found)))
