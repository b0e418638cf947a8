"""The choice of platform and operators: who serves, and who should."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.doctor.finding import Evidence, Finding, Severity
from vllm_adapter.doctor.rule import Box, Rule, finding, quoted
from vllm_adapter.doctor.text_rule import TextRule

_LISTED: Final = r"^.*?\s-\s+(?P<name>[\w.-]+)\s+->\s+(?P<value>[\w.]+:[\w.]+)"
_GROUP: Final = r"Available plugins for group (?P<group>[\w.]+)"
_ACTIVATED: Final = r"Platform plugin (?P<name>[\w.-]+) is activated"
_SERVES: Final = (
    r"device_config=(?P<device>\w+)|detected platform (?P<platform>\w+)"
    r"|(?P<none>No platform detected|UnspecifiedPlatform)"
)
_NONE: Final = (
    r"Failed to infer device type|'UnspecifiedPlatform' object has no attribute"
    r"|Device string must not be empty"
)
_REMEDY: Final = "`vllm-adapter doctor --vllm` imports each plug-in and shows its error"
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
        head = re.search(_GROUP, line.text)
        if head:
            group = head["group"]
            continue
        entry = re.search(_LISTED, line.text)
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


def _none_found(box: Box) -> Iterator[Finding]:
    """vLLM settles on no platform. Which device was expected tells what to look at."""
    words = ("failed to infer device type", "unspecifiedplatform", "device string must not be")
    said = [quoted(line) for line, _ in box.told(_NONE, words)]
    if not said:
        return
    torch = box.facts.torch
    if torch and (torch.local or "").startswith("cpu") and not box.other_runtime:
        why = (
            f"torch {torch.version} is a build for the CPU, and this vLLM is not: its wheel for "
            "the CPU has the version +cpu"
        )
        then = "install the vLLM wheel of the device, with its torch"
    elif torch and torch.hip:
        why = "vLLM found no AMD device: amdsmi cannot be imported, or sees none here"
        then = (
            "`python -c 'import amdsmi; amdsmi.amdsmi_init()'` shows the error; install amdsmi "
            "from /opt/rocm/share/amd_smi; check /dev/kfd and /dev/dri"
        )
    elif box.other_runtime:
        name = box.other_runtime
        why = f"this environment is for {name}, and no plug-in of vLLM for {name} answered"
        then = (
            "install the plug-in package of vLLM's own release (for Ascend vllm-ascend, for Gaudi "
            "vllm-gaudi), and import its torch package by hand to see its error"
        )
    else:
        why = "no platform of vLLM answered: mostly NVML sees no NVIDIA GPU in this container"
        then = "run `nvidia-smi` (or the vendor's tool) in the same place"
    yield finding(
        "VA1508",
        said[:2],
        why,
        f"{then}; VLLM_LOGGING_LEVEL=DEBUG prints what each platform answered; "
        "`vllm-adapter doctor --vllm` asks them one by one",
    )


def _cpu_serves(box: Box) -> Iterator[Finding]:
    """An accelerator is here, and vLLM says that it runs on the CPU."""
    vllm = box.facts.vllm
    asked = box.facts.variable("VLLM_TARGET_DEVICE") == "cpu" or box.facts.variable(
        "CUDA_VISIBLE_DEVICES"
    ) in ("", "-1")
    known = sorted(
        box.vendors & {"cuda", "rocm", "xpu", "ascend", "gaudi", "musa", "mlu", "metax"}
    )
    if vllm is None or vllm.platform != "cpu" or not known or asked:
        return
    if box.says(r"--device[= ]cpu|device='cpu'"):
        return
    yield finding(
        "VA1503",
        box.evidence(r"detected platform cpu|device_config=cpu|platform type cpu", "platform cpu"),
        f"vLLM runs on the CPU, and a device for {known[0]} is in this box",
        severity=Severity.WARNING,
    )


def _not_for_the_cpu(box: Box) -> bool:
    """Not a box whose builds are all for the CPU."""
    torch = box.facts.torch
    plain = bool(torch and (torch.local or "").startswith("cpu"))
    return bool(box.vendors) or not plain


RULES: Final = (
    Rule("VA1502", _swallowed),
    Rule("VA1503", _cpu_serves),
    Rule("VA1504", _other_silicon),
    Rule("VA1508", _none_found),
    TextRule(
        "VA1501",
        ("only one platform plugin",),
        r"Only one platform plugin can be activated, but got: (?P<names>\[[^\]]*\])",
        "vLLM counts two active platforms, {names}, and allows one",
        "with 'cpu' among them: vLLM was built for the CPU, or an old release counts it wrongly: "
        "upgrade, or build with VLLM_TARGET_DEVICE of the wanted device; with 'cuda' and 'rocm': "
        "pynvml answers on an AMD or Hygon box, uninstall it; otherwise uninstall one of the two "
        "plug-ins or name the wanted one in VLLM_PLUGINS",
    ),
    TextRule(
        "VA1502",
        ("failed to load plugin",),
        r"Failed to load plugin (?P<name>[\w.-]+)",
        "the plug-in {name} raised an error when vLLM loaded it, and vLLM goes on without it",
        "read the traceback below that line; upgrade or reinstall the plug-in for this vLLM; "
        f"{_REMEDY}",
    ),
    TextRule(
        "VA1505",
        ("could not run 'vllm::", "object has no attribute"),
        r"Could not run '(?P<op>vllm::\w+)' with arguments from the '(?P<where>\w+)' backend",
        "{op} runs into the {where} fallback: the platform's plug-in is not active in this "
        "process, or its communicator is not registered",
        f"check VLLM_PLUGINS and that the plug-in loads in every process; {_REMEDY}",
    ),
    TextRule(
        "VA1505",
        ("_opnamespace",),
        r"'_OpNamespace' '(?P<space>_C\w*|_moe_C|_rocm_C|_vllm_fa\w*)' object has no attribute "
        r"'(?P<op>(?!(?:gptq|awq|marlin|fp8_marlin))\w+)'",
        "vLLM's compiled module ({space}) holds no operator {op}: it was built for another device "
        "or another release than the Python part, or could not be loaded",
        "import it by hand (`python -c 'import vllm._C'`) and read its error; reinstall vLLM as "
        "one wheel for this device",
        unless=(r"Failed to import (?:from )?vllm\._C", r"undefined symbol"),
    ),
    TextRule(
        "VA1506",
        ("is not currently supported on the",),
        r"operator '(?P<op>(?!vllm::)[\w:.]+)' is not currently supported on the (?P<device>\w+) "
        r"backend and will fall back to run on the CPU",
        "{op} has no kernel on {device} and is computed on the CPU: right, and slow",
        severity=Severity.WARNING,
    ),
    TextRule(
        "VA1503",
        ("to cpu", "on cpu", "the cpu"),
        r"(?i)(?:no|without|missing|unavailable|not (?:found|available|detected))[^\n]{0,60}"
        r"\bfalling back to (?:the )?cpu\b|\bfalling back to (?:the )?cpu (?:backend|device|"
        r"platform|execution|inference)"
        r"|\bRunning on CPU (?:as|because) .*",
        "the program says itself that it goes on with the CPU",
        severity=Severity.WARNING,
        on=_not_for_the_cpu,
    ),
)
