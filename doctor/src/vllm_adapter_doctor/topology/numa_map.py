"""vLLM's NUMA flags for a vendor's devices, or the sentence why there are none.

vLLM binds each worker before Python starts; only for CUDA and ROCm it finds the nodes itself, so
for all others the flags must name them. They take one value a visible device, in that order; the
lists are refused without `--numa-bind`. A list that is too short stops vLLM, and `--membind` of a
node outside the cpuset stops numactl: then we give no flags.
# upstream: vllm@v0.32.0 vllm/config/parallel.py:552, vllm/utils/numa_utils.py:261
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_adapter.hostfacts.known_vendors import VENDORS

if TYPE_CHECKING:
    from vllm_adapter.hostfacts.facts import HostFacts
    from vllm_adapter_doctor.topology.types import TopoDevice


@dataclass(frozen=True, slots=True)
class NumaMap:
    """The flags of one vendor's visible devices. `flags` is empty where nothing is to be bound.

    `nodes` and `cpus` have one entry a device of `devices`; `cpus` is empty where the CPUs of any
    are not known. `sentence` says what the flags do, or why there are none.
    """

    vendor: str
    devices: tuple[str, ...]
    sentence: str
    nodes: tuple[int, ...] = ()
    cpus: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "vendor": self.vendor,
            "devices": list(self.devices),
            "nodes": list(self.nodes),
            "cpus": list(self.cpus),
            "flags": list(self.flags),
            "sentence": self.sentence,
        }


def numa_maps(
    devices: Sequence[TopoDevice], facts: HostFacts, *, several_nodes: bool
) -> tuple[NumaMap, ...]:
    """One map for each vendor among the devices; a vLLM process serves one vendor's.

    `several_nodes`: something tells that the host has more than one node with CPUs.
    """
    vendors = tuple(dict.fromkeys(device.vendor for device in devices))
    maps = []
    for vendor in vendors:
        own = [device for device in devices if device.vendor == vendor]
        whole = _map(vendor, own, facts, alone=len(vendors) == 1)
        if whole.flags and not several_nodes and set(whole.nodes) == {0}:
            text = "every device is on node 0, and no other node is reported: nothing to bind"
            whole = NumaMap(vendor, whole.devices, text)
        maps.append(whole)
    return tuple(maps)


def _map(vendor: str, devices: Sequence[TopoDevice], facts: HostFacts, *, alone: bool) -> NumaMap:
    chosen = _visible(vendor, devices, facts)
    if isinstance(chosen, str):
        return NumaMap(vendor, tuple(device.label for device in devices), chosen)
    labels = tuple(device.label for device in chosen)
    why = _why_not(chosen, facts, alone=alone)
    if why:
        return NumaMap(vendor, labels, why)
    nodes = tuple(device.numa_node for device in chosen if device.numa_node is not None)
    cpus = tuple(numactl_list(device.cpus) for device in chosen)
    flags = ["--numa-bind", "--numa-bind-nodes", *map(str, nodes)]
    if all(cpus):
        flags += ["--numa-bind-cpus", *cpus]
        end = " and to its CPUs"
    else:
        cpus = ()
        end = "; its CPUs are not known, numactl takes all of the node"
    sentence = f"each worker is bound to the memory of its device's node{end}"
    names = {device.name for device in chosen if device.name}
    order = VENDORS[vendor].limits.order if vendor in VENDORS else None
    if order and len(names) > 1 and facts.variable(order[0]) != order[1]:
        name, value, counter = order
        sentence += f"; the cards differ: set {name}={value}, or {counter} counts them otherwise"
    return NumaMap(vendor, labels, sentence, nodes, cpus, tuple(flags))


def _why_not(devices: Sequence[TopoDevice], facts: HostFacts, *, alone: bool) -> str | None:
    """Why there is nothing to bind, or no right way; None where there is."""
    if len([node for node in facts.numa if node.cpus]) == 1:
        return "one NUMA node: nothing to bind"
    lost = [device for device in devices if device.numa_node is None]
    if lost:
        reasons = "; ".join(dict.fromkeys(device.place for device in lost))
        names = span(device.label for device in lost)
        return f"no binding: the NUMA node of {names} is not known ({reasons})"
    seen = facts.torch.visible_devices if facts.torch and alone else None
    if seen is not None and seen > 0 and seen != len(devices):
        return (
            f"no binding: torch sees {seen} devices and the tools {len(devices)}; the "
            "report does not say which is which: match them by UUID or bus address"
        )
    for device in devices:
        if device.outside_cpuset:
            return (
                f"no binding: no CPU of node {device.numa_node} ({device.label}) is among those "
                f"that this process may use ({numactl_list(facts.cpuset.cpus)})"
            )
        if facts.cpuset.memory_nodes and device.numa_node not in facts.cpuset.memory_nodes:
            return (
                f"no binding: this process may not use the memory of node {device.numa_node} "
                f"({device.label}); its cpuset allows {numactl_list(facts.cpuset.memory_nodes)}"
            )
    return None


def _visible(
    vendor: str, devices: Sequence[TopoDevice], facts: HostFacts
) -> Sequence[TopoDevice] | str:
    """The devices that a process sees, in its order; or why that is not known."""
    found = {name: facts.variable(name) for name in _names(vendor)}
    reported = {name: value for name, value in found.items() if value is not None}
    if not reported:
        return devices
    first = VENDORS[vendor].limits.read[0]  # it filters before the others count
    if len(reported) > 1 and (first in reported or len(set(reported.values())) > 1):
        return f"no binding: {' and '.join(reported)} are both set: unset all but one"
    name, value = next(iter(reported.items()))
    if value.strip().lower() == "all":
        return devices
    chosen: list[TopoDevice] = []
    for part in value.split(","):
        named = [device for device in devices if _is_named(device, part.strip())]
        if len(named) != 1 or named[0] in chosen:
            return (
                f"no binding: {name}={value} does not name devices of this list once each, by "
                "number or UUID"
            )
        chosen += named
    return chosen


def _is_named(device: TopoDevice, part: str) -> bool:
    """By its number, or by the beginning of its UUID, as CUDA and ROCm take it."""
    if part.isascii() and part.isdigit():
        return device.index == int(part)
    head = part.lower()
    return len(head) > len("gpu-") and (device.uuid or "").lower().startswith(head)


def _names(vendor: str) -> tuple[str, ...]:
    row = VENDORS.get(vendor)
    return (row.visible, *row.limits.unset) if row and row.visible else ()


def numactl_list(numbers: Iterable[int]) -> str:
    """Numbers in numactl's form: "0-3,8"; "" for none."""
    parts: list[str] = []
    start = end = None
    for number in sorted(set(numbers)):
        if end is not None and number == end + 1:
            end = number
            continue
        if start is not None:
            parts.append(f"{start}-{end}" if end != start else f"{start}")
        start = end = number
    if start is not None:
        parts.append(f"{start}-{end}" if end != start else f"{start}")
    return ",".join(parts)


def span(labels: Iterable[str]) -> str:
    """Labels in short: GPU0, GPU1, GPU2, GPU5 is "GPU0-2,5"."""
    groups: dict[str, list[int]] = {}
    for label in labels:
        stem = label.rstrip("0123456789")
        digits = label[len(stem) :]
        groups.setdefault(stem if digits else f"{label}\0", []).append(int(digits or -1))
    return ", ".join(
        stem.removesuffix("\0") if stem.endswith("\0") else stem + numactl_list(numbers)
        for stem, numbers in groups.items()
    )
