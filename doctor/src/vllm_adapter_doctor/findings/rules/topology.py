"""Links, NUMA nodes and network cards, from the normalised topology."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from vllm_adapter.contract.finding import Evidence
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_doctor.findings.host import MAX_EVIDENCE, ExaminedHost
from vllm_adapter_doctor.findings.rule import Data, RuleHit

if TYPE_CHECKING:
    from vllm_adapter_doctor.topology.types import Topology

_REFUSED: Final = ("GNS", "CNS", "TNS", "NS", "DR")
"""Cells of `nvidia-smi topo -p2p` that say no: by the GPU, chipset or topology; disabled."""
_CUT: Final = r"(?:are|is) missing|incomplete|only displaying"


@lru_cache(maxsize=2)
def _topology(facts: HostFacts) -> Topology:
    from vllm_adapter_doctor.topology.read import build

    return build(facts)


def _tells(box: ExaminedHost) -> bool:
    """Most texts have no device and no link, and need no topology."""
    return bool(box.facts.links or box.facts.accelerators)


def _sources(box: ExaminedHost) -> str:
    return ", ".join(dict.fromkeys(matrix.source for matrix in box.facts.links)) or "the tables"


def cut(box: ExaminedHost, _: Data) -> Iterator[RuleHit]:
    """A table that says itself that it is not whole."""
    notes = [note for matrix in box.facts.links for note in matrix.notes if re.search(_CUT, note)]
    if notes:
        yield RuleHit(
            [
                *box.evidence(r"NICs found in the topology, only displaying"),
                *(Evidence(note, _sources(box)) for note in dict.fromkeys(notes)),
            ],
            {"tables": _sources(box), "note": notes[0]},
        )


def weak_links(box: ExaminedHost, data: Data) -> Iterator[RuleHit]:
    """Problems of the topology itself, of the kinds of `data`."""
    if not _tells(box):
        return
    topology = _topology(box.facts)
    for problem in topology.problems:
        if problem.kind in data["kinds"]:
            said = [Evidence(text, _sources(box)) for text in _cells(topology, problem.devices)]
            yield RuleHit(said[:MAX_EVIDENCE], {"sentence": problem.sentence}, problem.kind)


def _cells(topology: Topology, devices: Sequence[str]) -> list[str]:
    """What the table says of a pair, or of a device and the others, each kind of link once."""
    if len(devices) == 2 and (pair := topology.pair(*devices)):
        back = f", back {pair.reverse.shown}" if pair.reverse else ""
        return [f"{pair.first} to {pair.second}: {pair.link.shown}{back}"]
    found: list[str] = []
    for device in devices:
        by_link: dict[str, list[str]] = {}
        for pair in topology.pairs:
            if device in (pair.first, pair.second):
                other = pair.second if pair.first == device else pair.first
                back = f", back {pair.reverse.shown}" if pair.reverse else ""
                by_link.setdefault(pair.link.shown + back, []).append(other)
        found += [f"{device} to {', '.join(others)}: {shown}" for shown, others in by_link.items()]
    return found


def no_fabric(box: ExaminedHost, data: Data) -> Iterator[RuleHit]:
    """Modules that are always wired to a fabric, in a link table without one."""
    if not _tells(box):
        return
    topology, vendor = _topology(box.facts), data["vendor"]
    names = {one.name for one in box.facts.accelerators if one.vendor == vendor and one.name}
    wired = sorted(name for name in names if re.search(data["wired"], name))
    count = sum(one.vendor == vendor for one in topology.devices)
    if count < 2 or not topology.pairs or topology.domains or not box.facts.links:
        return
    if any(one.partition for one in box.facts.accelerators):
        return  # parts of one GPU have no link between them
    if not names and count == 8 and len(topology.nics) >= 8 and _in_switched_pairs(topology):
        yield RuleHit(
            [Evidence("8 devices in pairs behind PCIe switches, no NV in any row", _sources(box))],
            case="unnamed",
        )
    if wired and names == set(wired):
        yield RuleHit(
            [Evidence(f"{wired[0]}; no fabric link in any row", _sources(box))],
            {"name": wired[0]},
            "named",
        )


def _in_switched_pairs(topology: Topology) -> bool:
    """Whether each device has exactly one partner behind its own PCIe switches."""
    from vllm_adapter_doctor.topology.link_kind import LinkKind

    partners = dict.fromkeys((one.label for one in topology.devices), 0)
    for pair in topology.pairs:
        if pair.link.kind in (LinkKind.SWITCH, LinkKind.BRIDGE):
            partners[pair.first] += 1
            partners[pair.second] += 1
    return set(partners.values()) == {1}


def _maybe_cut(box: ExaminedHost, data: Data) -> bool:
    """Whether the end of the table may be missing."""
    last = box.facts.report[-1].text.strip("|+ \t") if box.facts.report else ""
    labels = {label for matrix in box.facts.links for label in matrix.devices}
    return (
        " ".join(last.split()).startswith(tuple(labels))
        or any(matrix.vendor in data["nodes_below"] for matrix in box.facts.links)
        or any(re.search(_CUT, note) for matrix in box.facts.links for note in matrix.notes)
    )


def unknown_node(box: ExaminedHost, data: Data) -> Iterator[RuleHit]:
    """A device without a node among others that have one is a gap; all without is a note."""
    if not _tells(box):
        return
    vendors = {matrix.vendor for matrix in box.facts.links}
    devices = [one for one in _topology(box.facts).devices if one.vendor in vendors]
    if not vendors or len(box.facts.numa) == 1:
        return
    without = [one for one in devices if one.numa_node is None]
    known = [one for one in devices if one.numa_node is not None]
    if known and _maybe_cut(
        box, data
    ):  # what comes last was lost with the end, and VA1002 says so
        last = devices.index(known[-1])
        without = [one for one in without if devices.index(one) < last]
    if not without:
        return
    labels = ", ".join(one.label for one in without)
    places: dict[str, list[str]] = {}
    for one in without:
        places.setdefault(one.place, []).append(one.label)
    yield RuleHit(
        [
            Evidence(f"{', '.join(those)}: {place}", _sources(box))
            for place, those in [*places.items()][:MAX_EVIDENCE]
        ],
        {"devices": labels},
        "a gap" if known else "none reported",
    )


def far_card(box: ExaminedHost, _: Data) -> Iterator[RuleHit]:
    """A single network card that the devices of one node reach only from another.

    SYS from devices of every node is no evidence: virtual machines print that.
    """
    if not _tells(box):
        return
    topology = _topology(box.facts)
    nodes = {one.numa_node for one in topology.devices}
    if len(topology.nics) != 1 or len(nodes) != 1 or None in nodes:
        return
    nic = topology.nics[0]
    if len(nic.across) == len(topology.devices):
        yield RuleHit(
            [Evidence(f"{nic.label} is {nic.by} from {', '.join(nic.across)}", _sources(box))],
            {"card": nic.name or nic.label, "devices": ", ".join(nic.across)},
        )


def one_affinity(box: ExaminedHost, _: Data) -> Iterator[RuleHit]:
    """Every device on one node of several."""
    if not _tells(box):
        return
    topology = _topology(box.facts)
    nodes = {one.numa_node for one in topology.devices}
    (node,) = nodes if len(nodes) == 1 else (None,)
    hosts = len(box.facts.numa)
    if len(topology.devices) >= 4 and node is not None and (node > 0 if hosts == 0 else hosts > 1):
        hidden = box.container or _narrowed(box) or (hosts == 0 and _upper_half(box))
        yield RuleHit(
            [Evidence(f"all {len(topology.devices)} devices on node {node}", _sources(box))],
            {"node": str(node)},
            "hidden" if hidden else "open",
        )


def _narrowed(box: ExaminedHost) -> bool:
    """Whether this process may use only a part of the CPUs that the host is known to have."""
    may, there = set(box.facts.cpuset.cpus), {cpu for one in box.facts.numa for cpu in one.cpus}
    return bool(may) and may < there


def _upper_half(box: ExaminedHost) -> bool:
    """Whether all devices name the same CPUs, in one run that starts at its own length (20-39).

    Sockets with two threads a core have two runs: what is left of one is a CPU set's work.
    """
    reported = {one.cpus for one in box.facts.accelerators if one.cpus and not one.cpus_truncated}
    if len(reported) != 1:
        return False
    (cpus,) = reported
    return cpus == tuple(range(len(cpus), 2 * len(cpus)))


def peer_access(box: ExaminedHost, data: Data) -> Iterator[RuleHit]:
    """Ways that a table refuses, and cards, by the names of `data`, that are not to count on."""
    if not _tells(box):
        return
    for matrix in box.facts.links:
        if matrix.kind != "peer":
            continue
        refused = [link for link in matrix.links if (link.text or "").upper() in _REFUSED]
        if refused:
            ways = [x for x in matrix.links if x.first != x.second]
            yield RuleHit(
                [
                    Evidence(f"{one.first} to {one.second}: {one.text}", matrix.source)
                    for one in refused[:5]
                ],
                {"refused": str(len(refused)), "ways": str(len(ways))},
                "refused",
            )
            return
    named = [
        one.name
        for one in box.facts.accelerators
        if one.vendor == data["vendor"] and one.name and re.search(data["names"], one.name)
    ]
    topology = _topology(box.facts)
    told = any(pair.link.kind.word != "unknown" for pair in topology.pairs)
    if len(named) > 1 and told and not topology.domains:
        yield RuleHit([Evidence(named[0], _sources(box))], {"name": named[0]}, "not to count on")
