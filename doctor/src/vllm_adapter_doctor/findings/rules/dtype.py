"""Data types that a device does not have."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_adapter_doctor.devices.device_names import capability
from vllm_adapter_doctor.devices.dtype_rules import without_bfloat16
from vllm_adapter_doctor.findings.host import ExaminedHost
from vllm_adapter_doctor.findings.rule import Data, RuleHit


def float16_only(box: ExaminedHost, _: Data) -> Iterator[RuleHit]:
    """Devices without bfloat16, each product once."""
    found = {
        one.text: (one.text if capability(device) else device.name or device.vendor, one)
        for device in reversed(box.devices)
        for verdict in without_bfloat16(device)
        for one in verdict.evidence
    }
    if found:
        names, evidence = zip(*reversed(found.values()), strict=True)
        yield RuleHit(evidence, {"devices": ", ".join(dict.fromkeys(names))})
