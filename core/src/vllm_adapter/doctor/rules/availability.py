"""torch's own word that it has no device, where nothing else says why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_adapter.doctor.finding import Evidence, Finding, Severity
from vllm_adapter.doctor.rule import Box, Rule, finding
from vllm_adapter.doctor.text_rule import TextRule

_OTHERS: Final = r"(?i)Neuron SDK Version\s*:\s*\d|neuronx|platform (?:neuron|tpu|hpu|npu|cpu)\b"
_ASK: Final = {
    "cuda": "in the same place: `nvidia-smi -L`, `ls /dev/nvidia*`, `python -c 'import torch; "
    "torch.cuda.init()'` names the reason",
    "rocm": "in the same place: `rocminfo`, `ls -l /dev/kfd /dev/dri`, `python -c 'import torch; "
    "torch.cuda.init()'` names the reason",
    "xpu": "in the same place: `sycl-ls`, `ls -l /dev/dri`, `python -c 'import torch; "
    "torch.xpu.init()'` names the reason",
}


def _unavailable(box: Box) -> Iterator[Finding]:
    torch = box.facts.torch
    if torch is None or torch.available is not False or box.says(_OTHERS):
        return
    vllm = box.facts.vllm
    if (vllm and "+cpu" in (vllm.version or "")) or box.facts.variable(
        "VLLM_TARGET_DEVICE"
    ) == "cpu":
        return
    built = "cuda" if torch.cuda else "rocm" if torch.hip else "xpu" if torch.xpu else None
    if built is None or (box.other_runtime or built) != built:
        return
    said = [Evidence(f"torch {torch.version}; it says that no device is available", "host facts")]
    here = [one for one in box.facts.accelerators if one.vendor == built and not one.integrated]
    if here:
        yield finding(
            "VA1111",
            [*said, Evidence(here[0].name or here[0].vendor, here[0].source)],
            f"torch is a build for {built}, the driver's tool lists {len(here)} such device(s), "
            "and torch counts none",
            _ASK[built],
            Severity.WARNING,
        )
    elif built != "cuda" and not box.vendors:
        yield finding(
            "VA1111",
            said,
            f"torch is a build for {built}, and no device is seen: it was not given to this "
            "container, may not be opened, or is not in this machine",
            _ASK[built],
            Severity.WARNING,
        )
    elif built == "cuda" and not box.vendors and not box.facts.driver("nvidia"):
        where = (
            "under WSL the driver is the one of Windows: install NVIDIA's driver there, and none "
            "inside WSL"
            if box.wsl
            else "start the container with `--gpus all`, or install the driver on the host"
        )
        yield finding(
            "VA1102",
            said,
            "torch is a build for CUDA, and no NVIDIA driver and no GPU is seen: they were not "
            "given to this container, or are not in this machine",
            f"{where}; on a machine without a GPU install the builds for the CPU",
            Severity.WARNING,
        )


RULES: Final = (
    Rule("VA1111", _unavailable),
    TextRule(
        "VA1201",
        ("torch not compiled with",),
        r"Torch not compiled with (?P<what>\w+) enabled",
        "the installed torch has no {what} support",
        "install torch's build for this device from its own index (for example cu128, rocm6.4, "
        "xpu), in a fresh environment",
    ),
    TextRule(
        "VA1201",
        ("module 'torch' has no attribute",),
        r"module 'torch' has no attribute '(?P<what>npu|xpu|hpu|musa|mlu|gcu)'",
        "torch knows no device {what}: the vendor's torch package is not installed or not "
        "imported, or this torch is another build",
        "install the vendor's package for this torch (torch_npu, torch_musa, torch_mlu, "
        "habana_frameworks; for xpu torch's own +xpu build), and import it first",
    ),
)
