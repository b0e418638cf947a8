"""The choice of platform and operators: who serves, and who should."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.doctor.finding import Evidence, Finding, Severity
from vllm_adapter.doctor.rule import Box, Rule, TextRule, finding, quoted

_LISTED: Final = re.compile(r"^.*?\s-\s+(?P<name>[\w.-]+)\s+->\s+(?P<value>[\w.]+:[\w.]+)")
_GROUP: Final = re.compile(r"Available plugins for group (?P<group>[\w.]+)")
_ACTIVATED: Final = re.compile(r"Platform plugin (?P<name>[\w.-]+) is activated")
_SERVES: Final = re.compile(
    r"device_config=(?P<device>\w+)|detected platform (?P<platform>\w+)"
    r"|(?P<none>No platform detected|UnspecifiedPlatform)"
)
_REMEDY: Final = "`vllm-adapter doctor --vllm` imports each plug-in and shows its error"
_FACES: Final = {"cuda": "torch's cuda device", "rocm": "ROCm's tools", "xpu": "xpu-smi"}
_SILICON: Final = {
    "metax": ("MetaX", "torch.cuda answers for it"),
    "hygon": ("Hygon DCU", "ROCm's device nodes and tools answer for it"),
    "thead": ("T-Head PPU", "nvidia-smi answers for it"),
    "kunlunxin": ("Kunlunxin", "its tool has the name of Intel's xpu-smi"),
    "iluvatar": ("Iluvatar", "torch.cuda answers for it"),
}


def _swallowed(box: Box) -> Iterator[Finding]:
    """A platform plug-in that was listed, not activated, and another platform that serves."""
    listed: list[tuple[str, str, Evidence]] = []
    group = ""
    for line in box.facts.report:
        head = _GROUP.search(line.text)
        if head:
            group = head["group"]
            continue
        entry = _LISTED.search(line.text)
        if entry and group == "vllm.platform_plugins":
            listed.append((entry["name"], entry["value"], quoted(line)))
    activated = {match["name"] for _, match in box.lines(_ACTIVATED)}
    serving = [(line, match) for line, match in box.lines(_SERVES)]
    if not listed or not serving or activated & {name for name, _, _ in listed}:
        return
    line, match = serving[-1]
    device = match["device"] or match["platform"] or "none"
    if device not in ("cpu", "none"):
        return
    names = ", ".join(name for name, _, _ in listed)
    yield finding(
        "VA1502",
        [*(evidence for _, _, evidence in listed), quoted(line)],
        f"vLLM found the platform plug-in {names} and then serves on "
        f"{'no platform' if device == 'none' else device}: the plug-in raised an error, which "
        "vLLM shows at level DEBUG only, or it said that its device is not here",
        f"{_REMEDY}; by hand: python -c 'import {listed[0][1].partition(':')[0]} as m; "
        f"print(m.{listed[0][1].partition(':')[2]}())'",
    )


def _other_silicon(box: Box) -> Iterator[Finding]:
    vendors = {one.vendor: one for one in box.facts.accelerators}
    for vendor, (name, face) in _SILICON.items():
        if vendor in vendors:
            one = vendors[vendor]
            said = f"{one.name or name}, told by {one.source}"
            yield finding(
                "VA1504",
                box.evidence(re.escape(one.name), said) if one.name else [Evidence(said, "facts")],
                f"the device is {name}'s, although {face}: it is not to be taken for another "
                "vendor's, nor its capability number compared with theirs",
                f"use {name}'s own plug-in of vLLM or an adapter named {vendor}",
                Severity.NOTE,
            )


RULES: Final = (
    Rule("VA1502", _swallowed),
    Rule("VA1504", _other_silicon),
    TextRule(
        "VA1501",
        r"Only one platform plugin can be activated, but got: (?P<names>\[[^\]]*\])",
        "vLLM counts two active platforms, {names}, and allows one",
        "with 'cpu' among them: vLLM was built for the CPU, or an old release counts it wrongly: "
        "upgrade, or build with VLLM_TARGET_DEVICE of the wanted device; otherwise uninstall one "
        "of the two or name the wanted one in VLLM_PLUGINS",
    ),
    TextRule(
        "VA1505",
        r"Could not run '(?P<op>vllm::\w+)' with arguments from the '(?P<where>\w+)' backend",
        "{op} runs into the {where} fallback: the platform's plug-in is not active in this "
        "process, or its communicator is not registered",
        f"check VLLM_PLUGINS and that the plug-in loads in every process; {_REMEDY}",
    ),
    TextRule(
        "VA1506",
        r"operator '(?P<op>(?!vllm::)[\w:.]+)' is not currently supported on the (?P<device>\w+) "
        r"backend and will fall back to run on the CPU",
        "{op} has no kernel on {device} and is computed on the CPU: right, and slow",
        severity=Severity.WARNING,
    ),
    TextRule(
        "VA1503",
        r"(?i)falling back to (?:the )?cpu(?! fallback)|Running on CPU(?: as| because).*",
        "the program says itself that it goes on with the CPU",
        severity=Severity.WARNING,
    ),
    TextRule(
        "VA1304",
        r"has no attribute '(?P<op>gptq_marlin\w*|awq_marlin\w*|marlin_\w+|fp8_marlin\w*)'",
        "the quantisation needs {op}, which this build of vLLM does not hold: its CPU build has "
        "no FP8 or GPTQ-Marlin kernels",
        "choose a bfloat16 or INT8 checkpoint for this platform; the warnings about XPU beside it "
        "mean nothing here",
    ),
)
