"""Host facts from a pasted report: any mix of tools' outputs, or facts that `facts` wrote.

Each parser looks for its own tool's output anywhere in the text and says nothing of the rest; it
is imported only where its anchor is in the text.
"""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from vllm_adapter.errors import InputError
from vllm_adapter.hostfacts.facts import Accelerator, HostFacts
from vllm_adapter_doctor.report.document import from_text, refuse_other_documents
from vllm_adapter_doctor.report.merge import merge
from vllm_adapter_doctor.report.secrets import hidden
from vllm_adapter_doctor.report.text import clean, decode

WRITTEN: Final = "the text"
"""The source of what a person counted: see `parsers.counted_lists`."""
MAX_BYTES: Final = 32 << 20
PARSERS: Final[tuple[tuple[str, str], ...]] = (
    ("surroundings", r""),  # a prefix that was taken off the lines may be the only sign
    (
        "collect_env",
        r"(?i)(?:PyTorch version|Python platform|Libc version|GPU models and configuration"
        r"|(?:CUDA|ROCM|XPU) used to build PyTorch|Nvidia driver version|Is \w+ available"
        r"|vLLM (?:Ascend )?Version|Intel GPU models|(?:CUDA|HIP) runtime version)\s*[*`]*:"
        r"|package_name=Ascend-cann",
    ),
    (
        "sglang_env",
        r"^\W*(?:(?:GPU|NPU|HPU|XPU) [\d,]+ Compute Capability|sglang"
        r"|(?:CUDA|ROCM|NPU|HPU|MUSA|XPU) available|(?:CUDA|ROCM|MUSA|Ascend) Driver Version)\s*:",
    ),
    (
        "lscpu",
        r"(?i)^\s*(?:Architecture|Model name|CPU\(s\)|O\w+-line CPU\(s\) list|NUMA node\d+ "
        r"CPU\(s\)|Flags|架构|machdep\.cpu\.brand_string|hw\.\w+|CPU)\s*:|^\s*CPU Info$",
    ),
    ("numactl", r"^\s*node \d+ cpus:"),
    (
        "system_text",
        r"^(?:\S*[$#] )?(?:Linux|Darwin) \S+ \d+\.\d+|^PRETTY_NAME=|^MemTotal:|\bldd \(|^musl libc"
        r"|Cuda compilation tools, release|^HIP version:|ascendhal_version=",
    ),
    ("nvidia_smi_q", r"NVSMI LOG=|<nvidia_smi_log>"),
    (
        "nvidia_smi",
        r"NVIDIA-SMI|Persistence-M|NVML library|UUID: |index,|device handle|GPU +Name"
        r"|^\W*GPU \d+\W{1,5}(?:NVIDIA|Tesla|GeForce|Quadro) "
        r"|--query-gpu|memory\.total \[|driver_version",
    ),
    (
        "npu_smi",
        r"npu-smi|Hugepages-Usage|Chip Logic ID|Chip Name"
        r"|^\|\s*\d+\s+(?:Ascend\s?)?\d{3}[\w-]*\s*\|\s*(?:OK|Warning|Alarm|Critical)\s*\|",
    ),
    ("vendor_tables", r""),  # the tools that are data have anchors of their own
    ("rocm_smi", r"PwrCap|\bNPS\d, *[SDTQC]PX\b|(?:GPU|DCU|HCU)\[\d+\]|\"card\d"),
    ("rocminfo", r"ROCk module version|^\s*Agent \d"),
    ("sycl_ls", r"level_zero:gpu"),
    ("lspci", r"^\s*(?:IOMMU [Gg]roup\W+\d+\W+)?[0-9a-f:]*[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] "),
    ("inxi", r"^\s*Graphics:"),
    (
        "counted_lists",
        r"\d\s?[x\u00d7*]\s?\**[A-Z]|^\s*Device \d+: \S|DeviceProperties\("
        r"|^\*Dev\s+Pwr|Found \d+ TPU"
        r"|(?:GPU(?: Model)?|NPU|Accelerator|Dev(?:ice)?(?: Name)?)s?\**\s*[:|]"
        r"|(?:Card [Mm]odel|Product Name)s?\**\s*[:|]"
        r"|^[\s|\u2502\u2503]{0,4}\d{1,2}\s*[|\u2502\u2503:\s]",
    ),
    ("dmesg", r"habanalabs|NVRM|amdgpu|\b(?:xe|i915) [0-9a-f]{4}:"),
    (
        "proc_files",
        r"NVRM version|/sys/bus/pci/devices/|/sys/module/|version\.info|package_name="
        r"|ascendhal_|/dev/|Bus Location"
        r"|^\s*Module +Size|^\s*[a-z]\w+ +\d{4,} +\d",
    ),
    (
        "amd_topo",
        r"\(Topology\)|(?i:(?:weight|hops|link type|access\w*|bandwidth) (?:between two|table))"
        r"|\"link_type\"|BW TABLE",
    ),
    ("nvidia_topo", r"\b[A-Z]{2,}\d+[ \t|]+[A-Z]"),  # other makers have words of their own
    ("nvidia_p2p", r"\bGPU\d+[ \t|]+(?:X|OK|[CGT]?NS|DR|U)\b"),
    ("ascend_topo", r"\b(?:NPU|Phy-ID)\d+[ \t|]+[A-Z]"),
    ("xpu_topo", r"\bGPU\s*\d+/\d+[ \t|]+[A-Z]"),
    ("gaudi_topo", r"\bmodID\b"),
    ("mthreads_topo", r"\bDevice[ \t]+\d+[ \t|]+[A-Z]"),
    (
        "startup_log",
        r"(?i)plugin|platform|vllm|torch|driver|out of memory|compute capability|visible devices",
    ),
    (
        "pip_list",
        r"^\W*\[(?:pip3?|conda)\] \S|^\s*[A-Za-z][\w.-]*==\d|^\W*Package\s+\|?\s*Version"
        r"|^\s*(?:torch|vllm)[\w-]* +\d|^Name: \S",
    ),
    ("env_vars", r"\b[A-Z][A-Z0-9_]{2,}(?:['\"]\])?\s?=|^\s*- name: [A-Z]"),
)
"""(module in `parsers`, anchor): the earlier is believed where two disagree."""


def read_report(path: str) -> HostFacts:
    """The facts in a file, or of standard input where the path is "-".

    Raises:
        InputError: no such file, a file that is no text, or an empty one; as `parse_report`.
    """
    name = "standard input" if path == "-" else f"the report {path}"
    try:
        raw = sys.stdin.buffer.read(MAX_BYTES + 1) if path == "-" else _bytes(Path(path))
    except OSError as error:
        raise InputError(
            f"{name} cannot be read: {error.strerror or error}",
            hint="give a file with a tool's output, or - for standard input",
        ) from None
    if len(raw) > MAX_BYTES:
        raise InputError(
            f"{name} is larger than {MAX_BYTES >> 20} MiB",
            hint="cut it down to the tools' outputs and the error",
        )
    if not raw.strip():
        raise InputError(
            f"{name} is empty",
            hint="paste what vLLM's collect_env, the vendor's tool or the failing program printed",
        )
    if b"\0" in raw and not raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(
            f"{name} is no text",
            hint="give a tool's output as text; a screenshot or an archive cannot be read",
        )
    return parse_report(raw)


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def parse_report(raw: bytes | str) -> HostFacts:
    """The facts in a text. What nothing reports stays unknown; nothing known is no error.

    Raises:
        InputError: JSON in the form of host facts with a value that is none, cut facts, or
            another kind of file of ours.
    """
    # as it is first: cleaning takes apart what JSON quotes
    facts = from_text(decode(raw) if isinstance(raw, bytes) else raw)
    if facts is not None:
        return facts
    report = clean(raw)
    facts = from_text(report.text)
    if facts is not None:
        return facts
    refuse_other_documents(report.text)
    report = replace(
        report, lines=tuple(replace(line, text=hidden(line.text)) for line in report.lines)
    )
    text = report.text
    parts = [
        importlib.import_module(f"vllm_adapter_doctor.report.parsers.{module}").parse(report)
        for module, anchor in PARSERS
        if re.search(anchor, text, re.MULTILINE)
    ]
    facts = merge(parts)
    devices = _without_written(facts.accelerators)
    return replace(facts, accelerators=devices, report=report.lines)


def _without_written(devices: tuple[Accelerator, ...]) -> tuple[Accelerator, ...]:
    """What a person counted is left out where a tool counts the same vendor's devices."""
    told = {one.vendor for one in devices if one.source != WRITTEN}
    return tuple(one for one in devices if one.source != WRITTEN or one.vendor not in told)
