"""What vendors' tools print of devices, and damage that a paste does to it."""

from __future__ import annotations

import importlib
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_doctor.report.text import clean

DATA = Path(__file__).parent / "data"
SAMPLES = {
    "dmesg": (
        "reports/other-vendors/03-habanalabs-dmesg-4-cards-unusable.txt",
        "tool_outputs/kernel-log.txt",
    ),
    "inxi": (
        "reports/intel/06-inxi-laptop-intel-only.txt",
        "tool_outputs/inxi-hybrid.txt",
    ),
    "lspci": (
        "reports/intel/07-lspci-optimus-laptop.txt",
        "reports/intel/08-lspci-k-arc-a770-i915.txt",
        "tool_outputs/lspci-mixed.txt",
    ),
    "npu_smi": (
        "reports/ascend/05-npu-smi-1x910b4-id-starts-at-1.txt",
        "tool_outputs/npu-smi-a3.txt",
        "tool_outputs/npu-smi-310p.txt",
        "tool_outputs/npu-smi-a5.txt",
        "tool_outputs/npu-smi-map.txt",
    ),
    "nvidia_smi": (
        "reports/nvidia-smi/02-wsl-smi-535-driver-537.txt",
        "reports/nvidia-smi/05-pre-2019-header-without-cuda-version.txt",
        "reports/nvidia-smi/06-nvml-mismatch-with-library-line.txt",
        "tool_outputs/nvidia-smi-mig.txt",
        "tool_outputs/nvidia-smi-query.csv.txt",
    ),
    "nvidia_smi_q": (
        "reports/numa-sysfs/04-nvidia-smi-xml-driver-390-fermi.txt",
        "reports/numa-sysfs/05-nvidia-smi-q-log-960m.txt",
        "tool_outputs/nvidia-smi-q.txt",
    ),
    "proc_files": (
        "reports/errors/48-amd-smi-card-node-permission.txt",
        "tool_outputs/driver-files.txt",
    ),
    "rocm_smi": (
        "tool_outputs/rocm-smi.txt",
        "tool_outputs/hy-smi.txt",
    ),
    "rocminfo": ("tool_outputs/rocminfo.txt",),
    "sycl_ls": ("tool_outputs/sycl-ls.txt",),
    "vendor_tables": (
        "reports/other-vendors/01-hl-smi-8xgaudi2-one-busy.txt",
        "tool_outputs/hl-smi-list.txt",
        "tool_outputs/hl-smi-gaudi3.txt",
        "tool_outputs/mx-smi.txt",
        "tool_outputs/cnmon.txt",
        "tool_outputs/cnmon-4.txt",
        "tool_outputs/mthreads-gmi.txt",
        "tool_outputs/ppu-smi.txt",
        "tool_outputs/ixsmi.txt",
        "tool_outputs/kunlunxin-xpu-smi.txt",
        "tool_outputs/xpu-smi-2-overview.txt",
        "tool_outputs/xpu-smi-discovery.txt",
        "tool_outputs/amd-smi-overview.txt",
        "tool_outputs/amd-smi-static.txt",
    ),
}
EVERY = tuple((parser, path) for parser, paths in SAMPLES.items() for path in paths)


def sample(path: str) -> str:
    return (DATA / path).read_text(encoding="utf-8")


def read(parser: str, text: str) -> HostFacts:
    module = importlib.import_module(f"vllm_adapter_doctor.report.parsers.{parser}")
    facts: HostFacts = module.parse(clean(text))
    return facts


def disagreements(cut: Any, whole: Any, where: str = "") -> list[str]:
    """Values of `cut` that `whole` has otherwise. Less is no disagreement; another value is."""
    if cut is None or cut == () or cut == whole:
        return []
    if is_dataclass(cut) and type(cut) is type(whole):
        return [
            line
            for field in fields(cut)
            for line in disagreements(
                getattr(cut, field.name), getattr(whole, field.name), f"{where}.{field.name}"
            )
        ]
    if isinstance(cut, tuple) and isinstance(whole, tuple):
        found = []
        for one in cut:
            partners = [disagreements(one, other, where) for other in whole]
            if not any(partner == [] for partner in partners):
                found.append(f"{where}: {one} is not in the whole text")
        return found
    return [f"{where}: {cut!r}, but {whole!r} in the whole text"]


def single_blanks(text: str) -> str:
    return "\n".join(re.sub(r"(?<=\S)[ \t]+", " ", line) for line in text.split("\n"))


def no_last_bars(text: str) -> str:
    return re.sub(r"[ ]*\|[ ]*$", "", text, flags=re.MULTILINE)


DAMAGE = {
    "windows line breaks": lambda text: text.replace("\n", "\r\n"),
    "quoted": lambda text: "".join(f"> {line}" for line in text.splitlines(keepends=True)),
    "each line twice as far": lambda text: text.replace("\n", "\n\n"),
    "indented": lambda text: "".join(f"    {line}" for line in text.splitlines(keepends=True)),
    "a compose log": lambda text: "".join(
        f"web-1  | {line}" for line in text.splitlines(keepends=True)
    ),
    "a fence": lambda text: f"```\n{text}```\n",
    "trailing blanks": lambda text: text.replace("\n", "   \n"),
    "hard blanks": lambda text: text.replace("  ", " \xa0"),
    "talk around it": lambda text: f"Here is what it says:\n\n{text}\nThanks for looking!\n",
    "printed twice": lambda text: f"{text}\n{text}",
}
