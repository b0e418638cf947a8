"""Visible devices: variables that filter twice, and numberings that are not the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_adapter.contract.finding import Evidence
from vllm_adapter_doctor.findings.conditions import named
from vllm_adapter_doctor.findings.host import ExaminedHost, quoted
from vllm_adapter_doctor.findings.rule import Data, RuleHit

_HIP: Final = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_ORDINAL: Final = r"(?P<api>HIP|CUDA|hip|cuda)\w* error: invalid device ordinal"


def filtered_twice(box: ExaminedHost, _: Data) -> Iterator[RuleHit]:
    """ROCr's filter counts first, HIP's counts within it. vLLM refuses unlike HIP and CUDA."""
    found = {name: value for name in _HIP if (value := box.facts.variable(name)) is not None}
    ordinal = [
        quoted(line) for line, _ in box.program_lines(_ORDINAL, ("invalid device ordinal",))
    ][:2]
    hip, rocr, cuda = (found.get(name) for name in _HIP)
    said = [Evidence(f"{name}={value}", "environment") for name, value in found.items()]
    rocm = named("rocm_known").holds(box)
    if rocr is not None and hip is not None:
        yield RuleHit([*ordinal, *said], case="twice, and it failed" if ordinal else "twice")
    elif rocm and hip is not None and cuda is not None and hip != cuda:
        yield RuleHit(said, case="unlike")
    elif ordinal and (rocm or "HIP" in ordinal[0].text):
        yield RuleHit([*ordinal, *said], case="HIP")
    elif ordinal:
        yield RuleHit([*ordinal, *said], case="CUDA")


def fewer_than_rows(box: ExaminedHost, _: Data) -> Iterator[RuleHit]:
    """torch's count against the rows of the driver's tool; what a log names is no count."""
    seen = box.facts.torch.visible_devices if box.facts.torch else None
    for matrix in box.facts.links:
        rows = len(matrix.devices)
        if matrix.kind != "links" or not seen or seen >= rows:
            continue
        yield RuleHit(
            [
                Evidence(f"torch sees {seen} devices", "host facts"),
                Evidence(f"{matrix.source} has {rows}", "host facts"),
            ],
            {"seen": str(seen), "rows": str(rows), "tool": matrix.source},
        )
