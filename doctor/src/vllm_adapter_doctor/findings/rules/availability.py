"""torch's own word that it has no device, where nothing else says why."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_adapter.contract.finding import Evidence
from vllm_adapter_doctor.findings.host import ExaminedHost
from vllm_adapter_doctor.findings.rule import Data, RuleHit


def unavailable(box: ExaminedHost, data: Data) -> Iterator[RuleHit]:
    """A build for a device that is not seen. `data` says how to look, by build."""
    torch = box.facts.torch
    if torch is None or torch.available is not False:
        return
    built = next((name for name in data["ask"] if name in box.builds), None)
    if built is None or (box.other_runtime or built) != built:
        return
    if built == "xpu" and box.facts.report and not box.has_line(data["said_of_xpu"]):
        return  # "Is CUDA available: False" is what a build for XPU rightly says
    said = [Evidence(f"torch {torch.version}; it says that no device is available", "host facts")]
    here = [one for one in box.facts.accelerators if one.vendor == built and not one.integrated]
    values = {"built": built, "ask": data["ask"][built], "count": str(len(here))}
    if here:
        listed = Evidence(here[0].name or here[0].vendor, here[0].source)
        yield RuleHit([*said, listed], {**values, "listed": here[0].vendor})
    elif not box.vendors:
        yield RuleHit(said, values)
