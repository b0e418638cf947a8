"""Data types that a device does not have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.doctor.finding import Evidence, Finding, Severity
from vllm_adapter.doctor.rule import Box, Rule, TextRule, finding, quoted

_FP8_REFUSED: Final = re.compile(
    r"type fp8e4(?:nv|m3\w*) not supported in this architecture"
    r"|(?i:fp8)[^\n]*(?:requires|only supported|is supported on)[^\n]*(?:8\.9|89|Hopper|Ada|MI3)"
)
_BELOW_8: Final = (
    (r"RTX 20\d\d|GTX 16\d\d|\bT4G?\b|Quadro RTX [3-8]000|TITAN RTX|T1000|T2000", "7.5"),
    (r"\bV100\b|TITAN V\b|Quadro GV100", "7.0"),
    (r"GTX 10\d\d|TITAN Xp|\bP40?\b|Quadro P\d000", "6.1"),
    (r"\bP100\b", "6.0"),
)
"""Product names of NVIDIA devices below compute capability 8.0; source: NVIDIA's list of GPUs."""
_NO_BFLOAT16: Final = {"310p": "Ascend 310P", "910a": "Ascend 910A"}


def _fp8(box: Box) -> Iterator[Finding]:
    lines = [quoted(line) for line, _ in box.lines(_FP8_REFUSED)]
    if not lines:
        return
    device = next((one for one in box.facts.accelerators if one.arch), None)
    named = f"{device.name or device.vendor} ({device.arch})" if device else "this device"
    yield finding(
        "VA1302",
        lines[:2],
        f"{named} has no native FP8 (e4m3): on NVIDIA it starts at compute capability 8.9",
        "use weight-only FP8 (W8A16 by Marlin, from 8.0), INT8, or FP16: FP16 weights take twice "
        "the bytes of FP8",
    )


def _float16_only(box: Box) -> Iterator[Finding]:
    """Devices below compute capability 8.0, and NPUs without bfloat16: good to know."""
    found: dict[str, Evidence] = {}
    for one in box.facts.accelerators:
        arch = (one.arch or "").lower()
        level = re.fullmatch(r"sm_(\d+)(\d)a?", arch)
        name = one.name or one.vendor
        named = next((cc for names, cc in _BELOW_8 if re.search(names, one.name or "")), None)
        if one.vendor == "cuda" and (int(level[1]) < 8 if level else named):
            text = f"{name}: compute capability {f'{level[1]}.{level[2]}' if level else named}"
            found.setdefault(text, Evidence(text, one.source))
        elif one.vendor == "ascend" and any(key in arch for key in _NO_BFLOAT16):
            found.setdefault(name, Evidence(f"{name} ({arch})", one.source))
    if found and not box.says(r"(?i)bfloat16 is only supported"):
        yield finding(
            "VA1301",
            found.values(),
            f"{', '.join(found)}: float16 only; a request for bfloat16 is refused",
            severity=Severity.NOTE,
        )


RULES: Final = (
    Rule("VA1302", _fp8),
    Rule("VA1301", _float16_only),
    TextRule(
        "VA1301",
        r"(?i)bfloat16 is only supported on GPUs with compute capability of at least 8\.0\. Your "
        r"(?P<name>.+?) GPU has compute capability (?P<cc>\d+\.\d+)",
        "{name} has compute capability {cc}, and bfloat16 needs 8.0",
        "use float16: `--dtype float16` (half)",
    ),
    TextRule(
        "VA1301",
        r"(?i)(?:bfloat16|bf16|DT_BF16)[^\n]*(?:not supported|unsupported|is not implemented)"
        r"[^\n]*(?:npu|310|ascend|device|architecture)",
        "the device has no bfloat16",
        "use float16: `--dtype float16` (half)",
    ),
    TextRule(
        "VA1303",
        r"(?i)e4m3fnuz[^\n]*e4m3fn\b|e4m3fn\b[^\n]*e4m3fnuz",
        "two flavours of FP8 meet: e4m3fn (largest value 448) and e4m3fnuz (240) have other bits",
        only=r"(?i)error|mismatch|expected",
    ),
)
