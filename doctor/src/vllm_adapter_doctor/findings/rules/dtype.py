"""Data types that a device does not have."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_adapter_doctor.devices.device_names import below, capability
from vllm_adapter_doctor.findings.finding import Evidence
from vllm_adapter_doctor.findings.host import ExaminedHost
from vllm_adapter_doctor.findings.rule import Data, RuleHit


def float16_only(box: ExaminedHost, data: Data) -> Iterator[RuleHit]:
    """Devices below a compute capability, and those whose code `data` names, by vendor."""
    found: dict[str, Evidence] = {}
    for one in box.facts.accelerators:
        code = (one.arch or "").lower()
        name = one.name or one.vendor
        if below(one, data["below"]):
            text = f"{name}: compute capability {capability(one)}"
            found.setdefault(text, Evidence(text, one.source))
        elif any(key in code for key in data["codes"].get(one.vendor, ())):
            found.setdefault(name, Evidence(f"{name} ({code})", one.source))
    if found:
        yield RuleHit(found.values(), {"devices": ", ".join(found)})
