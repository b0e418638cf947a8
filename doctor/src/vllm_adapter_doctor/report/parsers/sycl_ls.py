"""`sycl-ls`: the GPUs that Level Zero shows a program. Intel's only way to be seen by torch."""

from __future__ import annotations

import re
from typing import Final

from vllm_adapter.hostfacts.device_facts import Accelerator
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_doctor.report.parsers._display import in_processor
from vllm_adapter_doctor.report.text import Report

SOURCE: Final = "sycl-ls"
_LINE: Final = re.compile(
    r"\[(?:ext_oneapi_)?level_zero:gpu(?:\]\[level_zero)?(?::(?P<index>\d+))?\]\s+"
    r"(?:[^,\[\]]*, )?(?P<name>Intel\(R\) [^,]*?)(?: \d+(?:\.\d+)+)? \[[\d.+]+\]\s*$"
)
_ROW: Final = re.compile(  # the table that llama.cpp draws of the same devices
    r"^\|\s*\d+\|\s*\[level_zero:gpu:(?P<index>\d+)\]\|\s*(?P<name>Intel[^|]*?)\s*\|"
    r"(?:[^|]*\|){4}\s*(?P<mib>\d+)(?P<unit>M?)\|"
)


def parse(report: Report) -> HostFacts:
    """Devices by Level Zero's numbers, which ZE_AFFINITY_MASK changes.

    Under ONEAPI_DEVICE_SELECTOR the tool prints no numbers: then they are counted.
    """
    found: dict[int, Accelerator] = {}
    for pattern in (_LINE, _ROW):
        for _, line in report.find(pattern):
            name, index = line["name"], int(line["index"] or len(found))
            part = in_processor("xpu", name, None)
            size, unit = (line.groupdict().get(key) for key in ("mib", "unit"))
            device = Accelerator(
                "xpu",
                index,
                SOURCE,
                name=name,
                memory_total_bytes=int(size) << (20 if unit else 0) if size else None,
                integrated=part,
                unified_memory=True if part else None,
            )
            found.setdefault(index, device)
    return HostFacts(accelerators=tuple(found.values()))
