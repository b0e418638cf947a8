"""Visible devices: variables that filter twice, and numberings that are not the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_adapter.doctor.finding import Evidence, Finding, Severity
from vllm_adapter.doctor.rule import Box, Rule, finding, quoted
from vllm_adapter.doctor.text_rule import TextRule

_HIP: Final = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_LIMITS: Final = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ASCEND_RT_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "MUSA_VISIBLE_DEVICES",
    "HABANA_VISIBLE_MODULES",
)
_NOTHING: Final = (
    r"No CUDA GPUs are available|no CUDA-capable device is detected|No HIP GPUs are available"
    r"|no ROCm-capable device|device count is zero|No XPU devices|visible devices \(0\)"
    r"|Failed to infer device type"
)
_ORDINAL: Final = r"(?P<api>HIP|CUDA|hip|cuda)\w* error: invalid device ordinal"


def _filtered_twice(box: Box) -> Iterator[Finding]:
    """ROCr's filter counts first, HIP's counts within it. vLLM refuses unlike HIP and CUDA."""
    found = {name: value for name in _HIP if (value := box.facts.variable(name)) is not None}
    ordinal = [quoted(line) for line, _ in box.told(_ORDINAL, ("invalid device ordinal",))][:2]
    hip, rocr = found.get("HIP_VISIBLE_DEVICES"), found.get("ROCR_VISIBLE_DEVICES")
    cuda = found.get("CUDA_VISIBLE_DEVICES")
    said = [Evidence(f"{name}={value}", "environment") for name, value in found.items()]
    torch = box.facts.torch
    rocm = bool(torch and torch.hip) or any(o.vendor == "rocm" for o in box.facts.accelerators)
    if rocr is not None and hip is not None:
        yield finding(
            "VA1601",
            [*ordinal, *said],
            "ROCR_VISIBLE_DEVICES filters first and HIP_VISIBLE_DEVICES counts within what it "
            "left: ordinals shift, or point past the end",
            "set only one of the two",
            Severity.ERROR if ordinal else Severity.WARNING,
        )
    elif rocm and hip is not None and cuda is not None and hip != cuda:
        yield finding(
            "VA1601",
            said,
            "HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES differ: vLLM refuses to start on ROCm",
            "give both the same value, or unset one",
        )
    elif ordinal and (rocm or "HIP" in ordinal[0].text):
        yield finding(
            "VA1601",
            [*ordinal, *said],
            "a HIP program asks for a device that its filter left out; under Ray both "
            "HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES are touched, and the second counts "
            "within the first",
            "set only one visible-devices variable; under Ray set "
            "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES=1",
        )
    elif ordinal:
        yield finding(
            "VA1601",
            [*ordinal, *said],
            "a program asks for a device index that CUDA_VISIBLE_DEVICES leaves out",
            "count from 0 within the visible devices; under Ray leave the variable to Ray, or set "
            "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES=1",
        )


def _fewer_than_rows(box: Box) -> Iterator[Finding]:
    """torch's count against the rows of the driver's tool; what a log names is no count."""
    seen = box.facts.torch.visible_devices if box.facts.torch else None
    for matrix in box.facts.links:
        rows = len(matrix.devices)
        if matrix.kind != "links" or not seen or seen >= rows:
            continue
        yield finding(
            "VA1602",
            [
                Evidence(f"torch sees {seen} devices", "host facts"),
                Evidence(f"{matrix.source} has {rows}", "host facts"),
            ],
            f"torch sees {seen} of the {rows} devices that {matrix.source} lists: its index is "
            "not the row's number",
            "match by UUID or bus id (`nvidia-smi -L`); look at the visible-devices variable",
            Severity.WARNING,
        )


def _hides_all(box: Box) -> Iterator[Finding]:
    """A variable that leaves nothing over, where the program then says so."""
    for name in _LIMITS:
        value = box.facts.variable(name)
        if value is None or value.strip() not in ("", "-1", "NoDevFiles"):
            continue
        said = [
            quoted(line)
            for line, _ in box.told(
                _NOTHING,
                ("no cuda", "no hip", "no xpu", "is zero", "visible devices (0)", "infer"),
            )
        ]
        if said:
            yield finding(
                "VA1603",
                [*said[:2], Evidence(f"{name}={value}", "environment")],
                f"{name} is set to {value or 'nothing'}, which hides every device",
                f"unset {name}, or list the devices in it",
            )


RULES: Final = (
    Rule("VA1601", _filtered_twice),
    Rule("VA1602", _fewer_than_rows),
    Rule("VA1603", _hides_all),
    TextRule(
        "VA1604",
        (
            "invalid literal for int() with base 10: 'mig-",
            "invalid literal for int() with base 10: 'gpu-",
        ),
        r"invalid literal for int\(\) with base 10: '(?P<value>(?:MIG|GPU)-[\w-]+)'",
        "a visible-devices variable names a device by UUID ({value}), and this release reads "
        "numbers there",
        "upgrade vLLM, or give numbers: `nvidia-smi -L` shows which; a MIG instance is number 0 "
        "in a container that was given only it",
    ),
    TextRule(
        "VA1603",
        ("invalid device id", "nvmlerror_invalidargument", "no devices were found"),
        r"NVMLError_InvalidArgument: Invalid Argument|AssertionError: Invalid device id"
        r"|RuntimeError: Invalid device id",
        "the program asks for a device whose number does not exist here: a visible-devices "
        "variable names more than the container was given",
        "`nvidia-smi -L` in the same place; count CUDA_VISIBLE_DEVICES from 0 within the "
        "container, or unset it",
    ),
)
