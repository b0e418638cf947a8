"""On which NUMA node a device is, and which CPUs are near it: from the surest source that tells.

1. the kernel's PCI facts, by bus address; 2. the tool's NUMA column, where it names exactly one
node; 3. an affinity list that is whole and lies inside one node. A cut list, a range of nodes and
a node without CPUs are no location.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_adapter.hostfacts.facts import Accelerator, HostFacts
from vllm_adapter_doctor.topology.numa_map import numactl_list

_COLUMN = "the tool's NUMA column"
_SYSFS = "numa_node under /sys/bus/pci/devices would show it"


@dataclass(frozen=True, slots=True)
class NumaPlacement:
    """Where a device is. `how` says how that is known, or why it is not.

    `by_tool`: only the tool's own words say so, which may be those of a cpuset. `cpus` are within
    the cpuset; `outside_cpuset` says that it left none.
    """

    node: int | None
    how: str
    by_tool: bool = False
    cpus: tuple[int, ...] = ()
    outside_cpuset: bool = False


def is_wsl(facts: HostFacts) -> bool:
    """Whether the machine is a Windows host's Linux, which shows no bus and no node."""
    return any(word.startswith("wsl") for word in facts.os.environment)


def locate(
    device: Accelerator, siblings: Sequence[Accelerator], facts: HostFacts
) -> NumaPlacement:
    """The place of one device; `siblings` are all devices of its vendor here."""
    if is_wsl(facts):
        return NumaPlacement(None, "WSL shows no NUMA node of a device")
    node, how, by_tool = _node(device, siblings, facts)
    near = _near(device, node, facts)
    allowed = _allowed(near, facts)
    return NumaPlacement(node, how, by_tool, allowed, bool(near) and not allowed)


def _node(
    device: Accelerator, siblings: Sequence[Accelerator], facts: HostFacts
) -> tuple[int | None, str, bool]:
    with_cpus = {one.id: set(one.cpus) for one in facts.numa if one.cpus}
    by_pci = next((pci.numa_node for pci in facts.pci if pci.bdf == device.bdf), None)
    if by_pci is not None and (not with_cpus or by_pci in with_cpus):
        return by_pci, "PCI", False
    if len(with_cpus) == 1:
        return next(iter(with_cpus)), "the only node", False
    named = tuple(node for node in device.numa_nodes if not with_cpus or node in with_cpus)
    if len(named) == 1:
        return named[0], _COLUMN, True
    lowest = _before_memory(named, siblings)
    if device.memory_nodes and lowest is not None:
        return lowest, f"{_COLUMN}: the node with CPUs", True
    affinity = () if device.cpus_truncated else device.cpus
    inside = [node for node, cpus in with_cpus.items() if affinity and cpus.issuperset(affinity)]
    if len(inside) == 1:
        return inside[0], "its CPU affinity", True
    return None, _why_unknown(device, facts), False


def _before_memory(named: Sequence[int], siblings: Sequence[Accelerator]) -> int | None:
    """The lowest of a list of nodes, where all nodes of device memory come after it.

    The kernel numbers nodes with CPUs first; a Grace CPU's others are its devices' memory.
    """
    memory = [node for one in siblings for node in one.memory_nodes]
    if not named or not memory or min(named) >= min(memory):
        return None
    return min(named)


def _why_unknown(device: Accelerator, facts: HostFacts) -> str:
    if len(device.numa_nodes) > 1:
        return f"nodes {numactl_list(device.numa_nodes)} are no single location; {_SYSFS}"
    if device.numa_nodes and facts.numa:
        return f"node {device.numa_nodes[0]} has no CPUs here; {_SYSFS}"
    if device.cpus_truncated:
        return f"the affinity text is cut; {_SYSFS}"
    if device.cpus and not facts.numa:
        return "its CPUs are known, their node is not: add `lscpu` or `numactl -H`"
    if device.cpus:
        return f"its CPUs are of several nodes; {_SYSFS}"
    return f"not reported; {_SYSFS}"


def _near(device: Accelerator, node: int | None, facts: HostFacts) -> set[int]:
    """CPUs of the node that the affinity does not leave out; with no node, the affinity."""
    of_node = {cpu for one in facts.numa if one.id == node for cpu in one.cpus}
    affinity = set() if device.cpus_truncated else set(device.cpus)
    return (of_node & affinity or of_node) if of_node else affinity


def _allowed(cpus: set[int], facts: HostFacts) -> tuple[int, ...]:
    usable = cpus - set(facts.cpu.offline)
    if facts.cpuset.cpus:
        usable &= set(facts.cpuset.cpus)
    return tuple(sorted(usable))
