"""What a topology is made of: plain data, and how it looks as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm_adapter.contract.reading import plain
from vllm_adapter_doctor.devices.box_device import Device
from vllm_adapter_doctor.topology.link_kind import LinkClass
from vllm_adapter_doctor.topology.numa_map import NumaMap, numactl_list
from vllm_adapter_doctor.topology.place import NumaPlacement


@dataclass(frozen=True, slots=True)
class TopoDevice:
    """A device of the inventory under the name and the number that its table of links has for it.

    `at` is where it is: its `place` says how that is known, or why not.
    """

    label: str
    device: Device
    index: int
    at: NumaPlacement

    @property
    def vendor(self) -> str:
        """The adapter's name."""
        return self.device.vendor

    @property
    def name(self) -> str | None:
        """The product's name."""
        reported = self.device.reported
        return self.device.name or (reported.name if reported else None)

    @property
    def bdf(self) -> str | None:
        """Its bus address."""
        return self.device.bdf

    @property
    def uuid(self) -> str | None:
        """Its own id."""
        return self.device.uuid

    @property
    def numa_node(self) -> int | None:
        """The node that has CPUs."""
        return self.at.node

    @property
    def place(self) -> str:
        """How the node is known, or why it is not."""
        return self.at.how

    @property
    def cpus(self) -> tuple[int, ...]:
        """Those that a worker of this device may be bound to, within the cpuset."""
        return self.at.cpus

    @property
    def outside_cpuset(self) -> bool:
        """Whether its node has CPUs, and this process may use none of them."""
        return self.at.outside_cpuset

    @property
    def memory_nodes(self) -> tuple[int, ...]:
        """Nodes that hold the device's own memory and have no CPUs."""
        return self.device.reported.memory_nodes if self.device.reported else ()

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "label": self.label,
            "vendor": self.vendor,
            "index": self.index,
            "name": self.name,
            "bdf": self.bdf,
            "uuid": self.uuid,
            "numa_node": self.numa_node,
            "place": self.place,
            "cpus": numactl_list(self.cpus),
            "memory_nodes": list(self.memory_nodes),
        }


@dataclass(frozen=True, slots=True)
class Pair:
    """Two devices and the link between them; where both ways differ, `link` is the weaker.

    `reverse` is the better way of an asymmetric link, else None.
    """

    first: str
    second: str
    link: LinkClass
    reverse: LinkClass | None = None
    bandwidth_mb_s: int | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "first": self.first,
            "second": self.second,
            "link": self.link.to_json(),
            "reverse": self.reverse.to_json() if self.reverse else None,
            "bandwidth_mb_s": self.bandwidth_mb_s,
        }


@dataclass(frozen=True, slots=True)
class Domain:
    """Devices that a vendor's fabric joins, directly or by way of each other.

    `complete`: every pair has a direct link; None where distances are unknown. `lanes` is the
    count that all direct links have, else None. `meshes` split an incomplete domain into equal
    groups in which every pair has a direct link.
    """

    devices: tuple[str, ...]
    fabric: str
    complete: bool | None
    lanes: int | None
    sentence: str
    meshes: tuple[tuple[str, ...], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "devices": list(self.devices),
            "fabric": self.fabric,
            "complete": self.complete,
            "lanes": self.lanes,
            "meshes": [list(mesh) for mesh in self.meshes],
            "sentence": self.sentence,
        }


@dataclass(frozen=True, slots=True)
class Island:
    """Devices that sit together. `by`: switch, bridge, host, node (PCIe); numa, cpus, unknown.

    `node` is the NUMA node where `by` is numa; `cpus` is for devices of one affinity whose node
    nobody named.
    """

    by: str
    devices: tuple[str, ...]
    node: int | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """A link that is not as its siblings. `kind`: degraded, asymmetric, missing or lost."""

    kind: str
    devices: tuple[str, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class Nic:
    """A network card: `nearest` devices are those of the closest kind, `by` that kind's word.

    `across` are devices that reach it only from one NUMA node to another.
    """

    label: str
    name: str | None
    by: str
    nearest: tuple[str, ...]
    across: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Topology:
    """How the devices of one host are joined. `pairs` holds each pair once, in order."""

    devices: tuple[TopoDevice, ...] = ()
    pairs: tuple[Pair, ...] = ()
    domains: tuple[Domain, ...] = ()
    islands: tuple[Island, ...] = ()
    nics: tuple[Nic, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    maps: tuple[NumaMap, ...] = ()

    def pair(self, first: str, second: str) -> Pair | None:
        """The pair of two labels, in any order."""
        names = {first, second}
        return next((pair for pair in self.pairs if {pair.first, pair.second} == names), None)

    def device(self, label: str) -> TopoDevice:
        """The device of a label. Raises StopIteration where there is none."""
        return next(device for device in self.devices if device.label == label)

    def groups(self) -> tuple[Island, ...]:
        """The NUMA groups: each device is in exactly one."""
        return tuple(one for one in self.islands if one.by in ("numa", "cpus", "unknown"))

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "devices": [device.to_json() for device in self.devices],
            "pairs": [pair.to_json() for pair in self.pairs],
            "domains": [domain.to_json() for domain in self.domains],
            "islands": [plain(island) for island in self.islands],
            "nics": [plain(nic) for nic in self.nics],
            "numa": [one.to_json() for one in self.maps],
            "problems": [plain(problem) for problem in self.problems],
            "notes": list(self.notes),
            "advice": list(self.advice),
        }
