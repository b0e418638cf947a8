"""Links, NUMA nodes and network cards, from the normalised topology."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from vllm_adapter.doctor.finding import Evidence, Finding, Severity
from vllm_adapter.doctor.rule import Box, Rule, finding
from vllm_adapter.host.facts import HostFacts

if TYPE_CHECKING:
    from vllm_adapter.host.topology_types import Topology

_WIRED: Final = r"(?i)\b(?:SXM\d?|HGX|OAM)\b|-SXM"
_REFUSED: Final = ("GNS", "CNS", "TNS", "NS", "DR")
"""Cells of `nvidia-smi topo -p2p` that say no: by the GPU, chipset or topology; disabled."""
_SAID: Final = {"degraded": "VA1801", "asymmetric": "VA1802"}
_CUT: Final = r"(?:are|is) missing|incomplete|only displaying"


@lru_cache(maxsize=2)
def _topology(facts: HostFacts) -> Topology:
    from vllm_adapter.host.topology import build

    return build(facts)


def _sources(box: Box) -> str:
    return ", ".join(dict.fromkeys(matrix.source for matrix in box.facts.links)) or "the tables"


def _cut(box: Box) -> Iterator[Finding]:
    notes = [note for matrix in box.facts.links for note in matrix.notes if re.search(_CUT, note)]
    if notes:
        yield finding(
            "VA1002",
            [
                *box.evidence(r"NICs found in the topology, only displaying"),
                *(Evidence(note, _sources(box)) for note in dict.fromkeys(notes)),
            ],
            f"{_sources(box)} is not whole in this report: {notes[0]}",
            severity=Severity.WARNING,
        )


def _weak_links(box: Box) -> Iterator[Finding]:
    for problem in _topology(box.facts).problems:
        if problem.kind in _SAID:
            yield finding(
                _SAID[problem.kind],
                [Evidence(problem.sentence, _sources(box))],
                problem.sentence,
                severity=Severity.WARNING,
            )


def _no_fabric(box: Box) -> Iterator[Finding]:
    """Modules that are always wired to a fabric, in a link table without one."""
    topology = _topology(box.facts)
    names = {one.name for one in box.facts.accelerators if one.vendor == "cuda" and one.name}
    wired = sorted(name for name in names if re.search(_WIRED, name))
    count = sum(one.vendor == "cuda" for one in topology.devices)
    if count < 2 or not topology.pairs or topology.domains or not box.facts.links:
        return
    if any(one.partition for one in box.facts.accelerators):
        return  # parts of one GPU have no link between them
    if not names and count == 8 and len(topology.nics) >= 8 and _in_switched_pairs(topology):
        yield finding(
            "VA1803",
            [Evidence("8 devices in pairs behind PCIe switches, no NV in any row", _sources(box))],
            "the layout is that of a board with NVLink, and no row shows one; the names are not "
            "in this report: if these are SXM modules, nvidia-fabricmanager does not run, or they "
            "were passed through to a virtual machine without the fabric",
            severity=Severity.NOTE,
        )
    if wired and names == set(wired):
        yield finding(
            "VA1803",
            [Evidence(f"{wired[0]}; no fabric link in any row", _sources(box))],
            f"{wired[0]} is a module that NVLink always joins, and the table shows PCIe only: "
            "nvidia-fabricmanager does not run, or these are devices passed through to a virtual "
            "machine without the fabric",
            severity=Severity.WARNING,
        )


def _in_switched_pairs(topology: Topology) -> bool:
    """Whether each device has exactly one partner behind its own PCIe switches."""
    from vllm_adapter.host.link_kind import LinkKind

    partners = dict.fromkeys((one.label for one in topology.devices), 0)
    for pair in topology.pairs:
        if pair.link.kind in (LinkKind.SWITCH, LinkKind.BRIDGE):
            partners[pair.first] += 1
            partners[pair.second] += 1
    return set(partners.values()) == {1}


def _maybe_cut(box: Box) -> bool:
    """Whether the end of the table may be missing."""
    last = box.facts.report[-1].text.strip("|+ \t") if box.facts.report else ""
    labels = {label for matrix in box.facts.links for label in matrix.devices}
    return (
        " ".join(last.split()).startswith(tuple(labels))
        or any(matrix.vendor == "rocm" for matrix in box.facts.links)  # nodes are a list below it
        or any(re.search(_CUT, note) for matrix in box.facts.links for note in matrix.notes)
    )


def _unknown_node(box: Box) -> Iterator[Finding]:
    """A device without a node among others that have one is a gap; all without is a note."""
    vendors = {matrix.vendor for matrix in box.facts.links}
    devices = [one for one in _topology(box.facts).devices if one.vendor in vendors]
    if not vendors or len(box.facts.numa) == 1:
        return
    without = [one for one in devices if one.numa_node is None]
    known = [one for one in devices if one.numa_node is not None]
    if known and _maybe_cut(box):  # what comes last was lost with the end, and VA1002 says so
        last = devices.index(known[-1])
        without = [one for one in without if devices.index(one) < last]
    if not without:
        return
    labels = ", ".join(one.label for one in without)
    yield finding(
        "VA1804",
        [Evidence(f"{one.label}: {one.place}", _sources(box)) for one in without[:5]],
        f"nothing tells the NUMA node of {labels}; it is not guessed"
        + (", and these devices are not bound" if not known else ""),
        severity=Severity.WARNING if known else Severity.NOTE,
    )


def _far_card(box: Box) -> Iterator[Finding]:
    """A single network card that the devices of one node reach only from another.

    SYS from devices of every node is no evidence: virtual machines print that.
    """
    topology = _topology(box.facts)
    nodes = {one.numa_node for one in topology.devices}
    if len(topology.nics) != 1 or len(nodes) != 1 or None in nodes:
        return
    nic = topology.nics[0]
    if len(nic.across) == len(topology.devices):
        yield finding(
            "VA1805",
            [Evidence(f"{nic.label} is {nic.by} from {', '.join(nic.across)}", _sources(box))],
            f"the only network card ({nic.name or nic.label}) is on another socket than "
            f"{', '.join(nic.across)}: RDMA crosses the link between the sockets",
            severity=Severity.WARNING,
        )


def _one_affinity(box: Box) -> Iterator[Finding]:
    topology = _topology(box.facts)
    nodes = {one.numa_node for one in topology.devices}
    (node,) = nodes if len(nodes) == 1 else (None,)
    hosts = len(box.facts.numa)
    if len(topology.devices) >= 4 and node is not None and (node > 0 if hosts == 0 else hosts > 1):
        hidden = box.container or _narrowed(box) or (hosts == 0 and _upper_half(box))
        yield finding(
            "VA1807",
            [Evidence(f"all {len(topology.devices)} devices on node {node}", _sources(box))],
            f"every device names NUMA node {node}, on a host of several: a container's CPU set "
            "looks the same as all devices on one socket",
            severity=Severity.WARNING if hidden else Severity.NOTE,
        )


def _narrowed(box: Box) -> bool:
    """Whether this process may use only a part of the CPUs that the host is known to have."""
    may, there = set(box.facts.cpuset.cpus), {cpu for one in box.facts.numa for cpu in one.cpus}
    return bool(may) and may < there


def _upper_half(box: Box) -> bool:
    """Whether all devices name the same CPUs, in one run that starts at its own length (20-39).

    Sockets with two threads a core have two runs: what is left of one is a CPU set's work.
    """
    told = {one.cpus for one in box.facts.accelerators if one.cpus and not one.cpus_truncated}
    if len(told) != 1:
        return False
    (cpus,) = told
    return cpus == tuple(range(len(cpus), 2 * len(cpus)))


def _peer_access(box: Box) -> Iterator[Finding]:
    for matrix in box.facts.links:
        if matrix.kind != "peer":
            continue
        refused = [link for link in matrix.links if (link.text or "").upper() in _REFUSED]
        if refused:
            yield finding(
                "VA1806",
                [
                    Evidence(f"{one.first} to {one.second}: {one.text}", matrix.source)
                    for one in refused[:5]
                ],
                f"{len(refused)} of {len([x for x in matrix.links if x.first != x.second])} ways "
                "between devices have no peer access",
                severity=Severity.WARNING,
            )
            return
    geforce = [
        one.name
        for one in box.facts.accelerators
        if one.vendor == "cuda" and one.name and "GeForce" in one.name
    ]
    topology = _topology(box.facts)
    if len(geforce) > 1 and topology.pairs and not topology.domains:
        yield finding(
            "VA1806",
            [Evidence(geforce[0], _sources(box))],
            f"{geforce[0]} without NVLink: peer access between such cards is not to be counted on",
            "measure with `nvidia-smi topo -p2p rw`; NCCL_P2P_DISABLE=1 where it hangs",
            Severity.NOTE,
        )


def _of_devices(check: Callable[[Box], Iterator[Finding]]) -> Callable[[Box], Iterator[Finding]]:
    """The check, on a box with devices or links: most texts have none, and need no topology."""

    def checked(box: Box) -> Iterator[Finding]:
        if box.facts.links or box.facts.accelerators:
            yield from check(box)

    return checked


RULES: Final = tuple(
    Rule(code, _of_devices(check))
    for code, check in (
        ("VA1002", _cut),
        ("VA1801", _weak_links),
        ("VA1803", _no_fabric),
        ("VA1804", _unknown_node),
        ("VA1805", _far_card),
        ("VA1806", _peer_access),
        ("VA1807", _one_affinity),
    )
)
