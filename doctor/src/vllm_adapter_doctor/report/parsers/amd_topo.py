"""`rocm-smi --showtopo` and its parts, `amd-smi topology`, and what Hygon made of the first.

Text and --json of both. `amd-smi` labels its tables with bus addresses: cells are joined by them.
Hops are kept as printed, but `rocm-smi` prints 1 for every XGMI pair: the weight is the distance.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from vllm_adapter.hostfacts.device_facts import Accelerator, Link, LinkMatrix
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_doctor.report.parsers._amd_tables import MIN_WEIGHT, PairTable, read_tables
from vllm_adapter_doctor.report.parsers._common import normal_bdf
from vllm_adapter_doctor.report.text import Report

_NUMA: Final = re.compile(
    r"(GPU|HCU|DCU)\[(\d{1,3})\][\s:]*\(Topology\)\s*Numa (Node|Affinity):\s*(-?\d{1,4})(?![\d,-])"
)
_CARD: Final = re.compile(r'"card(\d{1,3})"\s*:\s*\{([^{}]*)\}')
_CARD_NUMA: Final = re.compile(
    r'"\(Topology\) Numa (Node|Affinity)"\s*:\s*"?(-?\d{1,4})"?\s*[,}\n]'
)
_PAIR: Final = re.compile(
    r'"\(Topology\) (Weight|Hops|Link type|Bandwidth) between DRM devices (\d{1,3}) and (\d{1,3})"'
    r'\s*:\s*"([^"\n]{1,40})"',
    re.IGNORECASE,
)
_AMD_SMI_JSON: Final = re.compile(r'\[\s*\{\s*"gpu"\s*:')
_BDF: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NOTHING: Final = {"0", "N/A", "NA", "NONE", "UNKNOWN", "NOT_SUPPORTED"}
_HYGON: Final = re.compile(r"\b[HD]CU(?:\[\d|\d)|\bhy-smi\b")


@dataclass(slots=True)
class _TopologyTables:
    """What one tool said: cells of each kind by a pair of labels, and NUMA nodes by index."""

    source: str
    labels: list[str] = field(default_factory=list)
    indices: dict[str, int] = field(default_factory=dict)
    cells: dict[str, dict[tuple[str, str], str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def label(self, name: str, index: int) -> None:
        if name not in self.indices:
            self.labels.append(name)
            self.indices[name] = index

    def cell(self, kind: str, pair: tuple[str, str], text: str) -> None:
        self.cells.setdefault(kind, {}).setdefault(pair, text)


def parse(report: Report) -> HostFacts:
    """The link tables and the NUMA nodes of AMD's and Hygon's tools; empty if there are none."""
    text = report.text
    vendor = "hygon" if _HYGON.search(text) else "rocm"
    said = [*_tables(read_tables(report)), *_rocm_json(text), *_amd_json(text)]
    nodes = _numa(report)
    found: dict[str, Accelerator] = {}
    for one in said:
        for device in _devices(one, vendor):
            found.setdefault(device.bdf or str(device.index), device)
    for index, node in nodes.items():
        known = found.get(str(index), Accelerator(vendor, index, "rocm-smi"))
        found[str(index)] = _at_node(known, node)
    links = [matrix for one in said for matrix in _matrices(one, vendor)]
    order = sorted(found.values(), key=lambda device: (device.source, device.index))
    return HostFacts(accelerators=tuple(order), links=tuple(links))


def _at_node(device: Accelerator, node: int) -> Accelerator:
    return Accelerator(device.vendor, device.index, device.source, numa_nodes=(node,))


def _tables(tables: Iterable[PairTable]) -> list[_TopologyTables]:
    """One for each set of labels: a paste may hold both tools, which number alike."""
    by_labels: dict[tuple[str, ...], _TopologyTables] = {}
    for table in tables:
        tool = "amd-smi topology" if ":" in table.labels[0] else "rocm-smi"
        one = by_labels.setdefault(table.labels, _TopologyTables(tool))
        for position, label in enumerate(table.labels):
            digits = re.sub(r"\D", "", label)
            one.label(label, position if ":" in label else int(digits))
        for pair, text in table.cells.items():
            one.cell(table.kind, pair, text)
        missing = [label for label in table.labels if label not in table.rows]
        if missing:
            why = "cut or damaged" if set(missing) & set(table.bad_rows) else "missing"
            one.notes.append(f"the {table.kind} table's row of {', '.join(missing)} is {why}")
    return list(by_labels.values())


def _rocm_json(text: str) -> list[_TopologyTables]:
    one = _TopologyTables("rocm-smi")
    kinds = {"weight": "weight", "hops": "hops", "link type": "type", "bandwidth": "bandwidth"}
    for kind, first, second, value in _PAIR.findall(text):
        for index in sorted({int(first), int(second)}):
            one.label(f"GPU{index}", index)
        pair = (f"GPU{int(first)}", f"GPU{int(second)}")
        if pair[0] != pair[1]:
            one.cell(kinds[kind.lower()], pair, value.strip().upper())
    one.labels.sort(key=one.indices.__getitem__)
    for cells in one.cells.values():  # each pair is listed once
        for (first, second), value in list(cells.items()):
            cells.setdefault((second, first), value)
    return [one] if one.labels else []


def _amd_json(text: str) -> list[_TopologyTables]:
    found = []
    for start in _AMD_SMI_JSON.finditer(text):
        try:
            raw, _ = json.JSONDecoder().raw_decode(text, start.start())
        except (ValueError, RecursionError):
            continue  # cut, or not JSON after all: says nothing
        one = _TopologyTables("amd-smi topology")
        for entry in raw:
            _amd_entry(one, entry)
        if one.cells:
            found.append(one)
    return found


def _amd_entry(one: _TopologyTables, entry: Any) -> None:
    if not (isinstance(entry, Mapping) and isinstance(entry.get("links"), list)):
        return
    bdf = str(entry.get("bdf", "")).lower()
    if not (_BDF.fullmatch(bdf) and isinstance(entry.get("gpu"), int)):
        return
    one.label(bdf, entry["gpu"])
    keys = {
        "weight": "weight",
        "num_hops": "hops",
        "link_type": "type",
        "link_status": "access",
        "bandwidth": "bandwidth",
    }
    for link in entry["links"]:
        other = str(link.get("bdf", "")).lower() if isinstance(link, Mapping) else ""
        if other == bdf or not _BDF.fullmatch(other):
            continue
        for key, kind in keys.items():
            if isinstance(link.get(key), (str, int)):
                one.cell(kind, (bdf, other), str(link[key]).upper())


def _numa(report: Report) -> dict[int, int]:
    """The node of each device. The last number of a cut report may be cut itself: not taken."""
    reported: dict[int, dict[str, int]] = {}
    for line in report.lines[:-1]:
        for _, index, key, node in _NUMA.findall(line.text):
            reported.setdefault(int(index), {}).setdefault(key, int(node))
    for index, body in _CARD.findall(report.text):
        for key, node in _CARD_NUMA.findall(f"{body}\n"):
            reported.setdefault(int(index), {}).setdefault(key, int(node))
    nodes = {index: keys.get("Node", keys.get("Affinity", -1)) for index, keys in reported.items()}
    return {index: node for index, node in nodes.items() if node >= 0}


def _devices(one: _TopologyTables, vendor: str) -> list[Accelerator]:
    return [
        Accelerator(vendor, one.indices[label], one.source, bdf=normal_bdf(label))
        for label in one.labels
    ]


def _matrices(one: _TopologyTables, vendor: str) -> list[LinkMatrix]:
    labels, indices = tuple(one.labels), tuple(one.indices[label] for label in one.labels)
    pairs = [(first, second) for first in labels for second in labels if first != second]
    links, peers = [], []
    for pair in pairs:
        texts = {kind: cells.get(pair) for kind, cells in one.cells.items()}
        link = Link(
            *pair,
            text=_word(texts.get("type")),
            weight=_weight(texts.get("weight")),
            hops=_number(texts.get("hops")),
            bandwidth_mb_s=_bandwidth(texts.get("bandwidth")),
        )
        if link != Link(*pair):
            links.append(link)
        if access := _word(texts.get("access")):
            peers.append(Link(*pair, text=access))
    notes = tuple(dict.fromkeys(one.notes))
    found = []
    if links:
        found.append(
            LinkMatrix(one.source, vendor, labels, indices, links=tuple(links), notes=notes)
        )
    if peers:
        found.append(LinkMatrix(one.source, vendor, labels, indices, "peer", links=tuple(peers)))
    return found


def _word(text: str | None) -> str | None:
    return None if text is None or text in _NOTHING else text


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,9}", text) else None


def _weight(text: str | None) -> int | None:
    weight = _number(text)
    return weight if weight is not None and weight >= MIN_WEIGHT else None


def _bandwidth(text: str | None) -> int | None:
    """The maximum of "50000-50000", in MB/s; 0-0 is the tool's word for no direct link."""
    return _number((text or "").rpartition("-")[2]) or None
