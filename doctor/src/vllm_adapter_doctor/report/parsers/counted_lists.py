"""Devices in lists that no vendor's tool prints: ggml's of its devices, and how people count them.

What a person wrote is believed only of vendors of whom no tool tells.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from vllm_adapter.hostfacts.device_facts import Accelerator
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_doctor.report.parsers._common import binary_size, normal_bdf
from vllm_adapter_doctor.report.parsers._display import in_processor
from vllm_adapter_doctor.report.parsers._makers import maker
from vllm_adapter_doctor.report.text import Report

GGML: Final = "torch"  # it counts what a program may see, as torch does
WRITTEN: Final = "the text"
_LISTED: Final = re.compile(
    r"^\s*Device (?P<index>\d{1,3}): (?P<name>\S[^,]{1,60}), (?:compute capability|gfx\w+)"
)
_PROPERTIES: Final = re.compile(
    r"^\W*(?P<index>\d{1,2})\]?: _\w*DeviceProperties\(name='(?P<name>[^']+)'"
)
_COUNTED: Final = re.compile(
    r"(?<![\w.])(?P<count>[1-9]\d?)\s?(?:[x\u00d7*])\s?(?:\*\*)?"
    r"(?P<name>(?:NVIDIA|AMD|Intel|Huawei|Ascend|Kunlun\w*|Tesla|GeForce|RTX|Radeon|Instinct|MTT|MetaX"
    r"|Gaudi|Arc|Hygon|Cambricon|A100|H100|H200|H20|L40S?|MI\d{3}X?|RX)\b[^,;|()\n]{0,40})"
    r"(?P<rest>.{0,40})"
)
_TABLED: Final = re.compile(
    r"^[\s|\u2502\u2503+]{0,4}(?P<index>\d{1,2})\s*[|\u2502\u2503:\s]\s*(?P<cells>\S.*)$"
)
_BDF: Final = re.compile(r"\b[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]\b")
_READ: Final = frozenset(
    "cuda rocm xpu ascend gaudi musa metax mlu hygon kunlunxin iluvatar thead neuron tpu".split()
)
"""Vendors whose own tables are read elsewhere."""
_SIZE: Final = re.compile(r"\b(\d{1,3}) ?(?:GB|GiB)\b")
_END: Final = re.compile(
    r"\s+(?:unless|only|when|if|works?|hangs?|with|on|in|and|at|per|GPUs?|cards?|NPUs?|each|using|via|PCIe:).*$|[*`:.]+.*$"
)
_BARE: Final = {"RTX": "cuda", "A100": "cuda", "H100": "cuda", "H200": "cuda", "H20": "cuda"}
_NAMED: Final = re.compile(
    r"^\W*(?:\d{1,2}\s+)?(?:\*\*)?(?:GPU(?: Model| Device)?|NPU|Accelerator"
    r"|Dev(?:ice)? Name|Device|Second GPU"
    r"|Card [Mm]odel|Product Name)s?(?:\*\*)?"
    r"\s*[:|]\s*(?:(?:cuda|xpu|musa|npu|hip):\d+\s+)?(?:\*\*)?\s*(?P<name>[A-Za-z][^\n,;|]{2,60})"
)
_GFX: Final = re.compile(r"\bgfx\d{3,4}[a-z]?\b")
_CHIPS: Final = re.compile(r"\bFound (?P<count>\d{1,2}) (?P<name>TPU v\w+) chips?\b")
_FIGURES: Final = re.compile(r"^\*Dev\s+Pwr\b.*\bMem\b")
_MOST: Final = 16


def parse(report: Report) -> HostFacts:
    """The devices of all these lists; a last line that may be cut is not read."""
    if not report.ended:
        report = replace(report, lines=report.lines[:-1])
    chips = report.first(_CHIPS)
    if chips:
        some = [
            Accelerator("tpu", index, GGML, name=chips["name"])
            for index in range(int(chips["count"]))
        ]
        return HostFacts(accelerators=tuple(some))
    written = tuple(_figures(report)) or tuple(_counted(report)) or tuple(_single(report))
    return HostFacts(accelerators=(*_listed(report), *_tabled(report), *written))


def _listed(report: Report) -> Iterator[Accelerator]:
    for _, found in report.find(_PROPERTIES):
        vendor = maker(found["name"], "")
        if vendor:
            yield Accelerator(vendor, int(found["index"]), GGML, name=found["name"])
    for _, found in report.find(_LISTED):
        vendor = maker(found["name"], "")
        if vendor:
            yield Accelerator(vendor, int(found["index"]), GGML, name=found["name"].strip())


def _tabled(report: Report) -> Iterator[Accelerator]:
    """Rows of tables that no parser knows: a number, then a product of a vendor."""
    seen: set[tuple[str, int]] = set()
    for position, found in report.find(_TABLED):
        cells = [cell.strip() for cell in re.split(r"[|\u2502\u2503]|\s{2,}", found["cells"])]
        name = next((cell for cell in cells if 3 <= len(cell) <= 40 and maker(cell, "")), "")
        vendor = maker(name, "")
        place = _BDF.search(found["cells"])
        if vendor and vendor not in _READ and (vendor, int(found["index"])) not in seen:
            seen.add((vendor, int(found["index"])))
            yield Accelerator(
                vendor,
                int(found["index"]),
                WRITTEN,
                name=name,
                bdf=normal_bdf(place[0]) if place else None,
                memory_total_bytes=_size_below(report, position),
            )


def _figures(report: Report) -> Iterator[Accelerator]:
    """Enflame's table of figures: a head of two lines, then a row a device."""
    for start, head in report.find(_FIGURES):
        columns = head.string.lstrip("*").split()
        for line in report.lines[start + 1 :]:
            cells = line.text.split()
            if line.text.startswith("*"):
                continue
            if len(cells) != len(columns) or not cells[0].isdigit():
                break
            row = dict(zip(columns, cells, strict=True))
            size = int(row["Mem"]) << 20 if row["Mem"].isdigit() else None
            used = re.fullmatch(r"\d+(?:\.\d+)?", row.get("MUsed", ""))
            yield Accelerator(
                "enflame",
                int(cells[0]),
                WRITTEN,
                memory_total_bytes=size,
                memory_used_bytes=round(size * float(used[0]) / 100) if size and used else None,
            )


def _single(report: Report) -> Iterator[Accelerator]:
    """ "GPU: NAME", each line one device."""
    numbers: dict[str, int] = {}
    for _, found in report.find(_NAMED):
        name = re.sub(r"\s*\((?!R\)|TM\)).*$", "", _END.sub("", found["name"])).strip(" -*")
        code = _GFX.search(found.string)
        vendor = maker(name, "") or ("rocm" if code else "")
        if not vendor or not re.search(r"\d", name):
            continue
        index = numbers[vendor] = numbers.get(vendor, -1) + 1
        part = in_processor(vendor, found["name"], None)
        arch = code[0] if code and vendor == "rocm" else None
        yield Accelerator(vendor, index, WRITTEN, name=name, arch=arch, integrated=part)


def _size_below(report: Report, position: int) -> int | None:
    """The memory in a row, or in the next one, which goes on with the same device."""
    for line in report.lines[position : position + 2]:
        size = re.search(r"\b(\d{3,6}) ?MiB\b", line.text)
        if size:
            return int(size[1]) << 20
    return None


def _counted(report: Report) -> Iterator[Accelerator]:
    """One count a vendor: the first that is written."""
    known: set[str] = set()
    for _, found in report.find(_COUNTED):
        name = _END.sub("", found["name"]).strip(" -")
        vendor = maker(name, "") or _BARE.get(re.split(r"[ -]", name)[0], "")
        if (
            not vendor
            or vendor in known
            or int(found["count"]) > _MOST
            or not re.search(r"\d", name)
        ):
            continue
        known.add(vendor)
        size = _SIZE.search(found["name"] + found["rest"])
        memory = binary_size(f"{size[1]} GiB") if size else None
        for index in range(int(found["count"])):
            yield Accelerator(vendor, index, WRITTEN, name=name, memory_total_bytes=memory)
