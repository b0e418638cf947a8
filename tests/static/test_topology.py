"""Topology of any vendor: taxonomy, domains, islands, faults, advice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from topologies import host, numa

from vllm_adapter.hostfacts.device_facts import Link, LinkMatrix
from vllm_adapter.hostfacts.facts import CpuFacts, HostFacts, OsFacts
from vllm_adapter_doctor.report.read import parse_report
from vllm_adapter_doctor.topology.advice import tensor_groups
from vllm_adapter_doctor.topology.link_kind import LinkKind, classify
from vllm_adapter_doctor.topology.read import build
from vllm_adapter_doctor.topology.types import Topology

pytestmark = pytest.mark.static

REPORTS = Path(__file__).parents[1] / "data" / "reports"
WORDS = ("NV18", "NV17", "NV2", "XGMI", "HCCS", "PIX", "PXB", "PHB", "NODE", "SYS", "N/A", "")


def read(name: str) -> Topology:
    (path,) = REPORTS.glob(f"{name}*")
    return build(parse_report(path.read_bytes()))


def pairs_by_kind(topology: Topology) -> dict[str, int]:
    found: dict[str, int] = {}
    for pair in topology.pairs:
        found[pair.link.kind.word] = found.get(pair.link.kind.word, 0) + 1
    return found


def sets(topology: Topology, by: str) -> list[tuple[int, ...]]:
    return [
        tuple(int("".join(filter(str.isdigit, label))) for label in island.devices)
        for island in topology.islands
        if island.by == by
    ]


@pytest.mark.parametrize(
    ("text", "weight", "kind", "lanes", "hops"),
    [
        ("NV18", None, LinkKind.FABRIC, 18, 1),
        ("XL24", None, LinkKind.FABRIC, 24, 1),
        ("XL*", None, LinkKind.FABRIC, None, None),
        ("HCCS", None, LinkKind.FABRIC, None, 1),
        ("HCCS_SW", None, LinkKind.FABRIC, None, 1),
        ("MTLINK4", None, LinkKind.FABRIC, 4, 1),
        ("XGMI", None, LinkKind.FABRIC, None, None),
        ("XGMI", 15, LinkKind.FABRIC, None, 1),
        ("XGMI", 45, LinkKind.FABRIC, None, 3),
        ("XGMI", 17, LinkKind.FABRIC, None, None),
        (None, 30, LinkKind.FABRIC, None, 2),
        ("SIO", None, LinkKind.DIE, None, None),
        ("MDF", None, LinkKind.DIE, None, None),
        ("PCIE", 20, LinkKind.SWITCH, None, None),
        ("PCIE", 40, LinkKind.HOST, None, None),
        ("PCIE", 52, LinkKind.SYSTEM, None, None),
        ("PCIE", 72, LinkKind.SYSTEM, None, None),
        ("PCIE", None, LinkKind.UNKNOWN, None, None),
        ("pix", None, LinkKind.SWITCH, None, None),
        ("PXB", None, LinkKind.BRIDGE, None, None),
        ("PHB", None, LinkKind.HOST, None, None),
        ("NODE", None, LinkKind.NODE, None, None),
        ("SOC", None, LinkKind.SYSTEM, None, None),
        ("SYS", None, LinkKind.SYSTEM, None, None),
        (" X ", None, LinkKind.SELF, None, None),
        ("S", None, LinkKind.SELF, None, None),
        ("NV0", None, LinkKind.UNKNOWN, None, None),
        ("N/A", None, LinkKind.UNKNOWN, None, None),
        ("NV", None, LinkKind.UNKNOWN, None, None),
        (None, None, LinkKind.UNKNOWN, None, None),
        ("", 52, LinkKind.UNKNOWN, None, None),
    ],
)
def test_classify(
    text: str | None, weight: int | None, kind: LinkKind, lanes: int | None, hops: int | None
) -> None:
    found = classify(text, weight)
    assert (found.kind, found.lanes, found.hops) == (kind, lanes, hops)


def test_kinds_are_ordered_from_near_to_far() -> None:
    words = [kind.word for kind in sorted(LinkKind)]
    assert words == "self die fabric switch bridge host node system unknown".split()


def test_no_device_gives_an_empty_topology() -> None:
    assert build(HostFacts()) == Topology()


def test_one_domain_of_eight_across_two_nodes() -> None:
    topology = read("topology-nvidia/01-")
    (domain,) = topology.domains
    assert (domain.complete, domain.lanes, len(domain.devices)) == (True, 18, 8)
    assert domain.sentence == "one NVLink domain of 8: GPU0-7, every pair NV18"
    assert sets(topology, "numa") == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert topology.problems == ()
    assert "tensor parallel 2 or 4 or 8 stays inside one link domain" in topology.advice


def test_pcie_only_on_two_sockets() -> None:
    topology = read("topology-nvidia/02-")
    assert topology.domains == ()
    assert sets(topology, "node") == sets(topology, "numa") == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert any("2 or 4 stays inside one group of {GPU0-3}, {GPU4-7}" in a for a in topology.advice)


def test_switch_islands_and_a_count_that_is_no_size() -> None:
    topology = read("topology-nvidia/21-")
    assert sets(topology, "switch") == [(0, 1), (2, 3, 4), (5, 6), (7, 8, 9)]
    assert sets(topology, "numa") == [(0, 1, 2, 3, 4), (5, 6, 7, 8, 9)]
    assert any(line.startswith("10 is no tensor parallel size") for line in topology.advice)


def test_a_cut_affinity_is_told_and_not_used() -> None:
    topology = read("topology-nvidia/13-")
    assert "the CPU affinity of GPU0-3 is cut in the text: it is not used" in topology.notes
    assert [device.numa_node for device in topology.devices] == [0, 0, 1, 1]
    assert {device.cpus for device in topology.devices} == {()}


def test_a_cube_mesh_is_no_fault_and_falls_into_quads() -> None:
    topology = read("topology-nvidia/05-")
    (domain,) = topology.domains
    assert domain.complete is False and topology.problems == ()
    assert domain.meshes == (("GPU0", "GPU1", "GPU2", "GPU3"), ("GPU4", "GPU5", "GPU6", "GPU7"))
    assert any("every device says NUMA node 1" in note for note in topology.notes)


def test_bridges_of_unequal_strength() -> None:
    topology = read("topology-nvidia/15-")
    assert [domain.lanes for domain in topology.domains] == [8, 8, 6, 4]
    assert [(p.kind, p.devices) for p in topology.problems] == [
        ("degraded", ("GPU4", "GPU7")),
        ("degraded", ("GPU5", "GPU6")),
    ]
    assert {device.numa_node for device in topology.devices} == {0, 2}


def test_half_a_table_of_a_cube_mesh_is_no_fault() -> None:
    (path,) = REPORTS.glob("topology-nvidia/05-*")
    lines = path.read_text(encoding="utf-8").splitlines()
    for rows in range(2, 9):
        assert build(parse_report("\n".join(lines[:rows]))).problems == ()


def test_nvlink_pairs_across_nodes_of_a_cloud_machine() -> None:
    topology = read("topology-nvidia/22-")
    assert [domain.devices for domain in topology.domains] == [("GPU0", "GPU1"), ("GPU2", "GPU3")]
    assert [device.numa_node for device in topology.devices] == [0, 1, 2, 3]


def test_everything_is_sys_and_nothing_known_is_no_evidence() -> None:
    topology = read("topology-nvidia/32-")
    assert any("no evidence" in note for note in topology.notes)
    assert {device.numa_node for device in topology.devices} == {None}


def test_sys_inside_a_node_keeps_the_groups() -> None:
    topology = read("topology-nvidia/36-")
    assert sets(topology, "numa") == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert any("SYS is printed inside a NUMA node" in note for note in topology.notes)
    assert [(nic.by, nic.nearest) for nic in topology.nics] == [("host", ("GPU6",))] * 2


def test_cards_on_the_other_socket() -> None:
    lines = read("topology-nvidia/29-").advice
    assert "NIC4-7 sit on another socket than every device: not for RDMA from here" in lines
    assert any(line.startswith("GPU0: no network card is near") for line in
               read("topology-nvidia/20-").advice)  # fmt: skip


def test_grace_devices_are_sys_to_every_card_and_that_is_no_warning() -> None:
    topology = read("topology-nvidia/35-")
    assert topology.nics and not any("network card" in line for line in topology.advice)
    assert any("hold only device memory" in note for note in topology.notes)


def test_peer_table_is_no_distance_table() -> None:
    topology = read("topology-nvidia/39-")
    assert pairs_by_kind(topology) == {"unknown": 1}
    assert any("peer access between devices is off" in line for line in topology.advice)


def test_missing_rows_come_from_the_other_way() -> None:
    topology = read("intel/03-")
    assert sets(topology, "node") == sets(topology, "cpus") == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert read("topology-nvidia/38-").pair("GPU4", "GPU7") is not None


def test_ascend_and_intel_fabrics() -> None:
    assert read("ascend/01-").domains[0].sentence.startswith("one HCCS domain of 8: NPU0-7")
    assert read("ascend/03-").domains == ()
    assert read("intel/01-").domains[0].lanes == 24
    assert sets(read("other-vendors/04-"), "numa") == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_xgmi_distances_come_from_weights_and_never_from_hops() -> None:
    topology = read("topology-amd/01-")
    pair = topology.pair("GPU1", "GPU7")
    assert pair is not None and pair.link.hops == 3
    (domain,) = topology.domains
    assert domain.complete is False
    assert domain.meshes == tuple((f"GPU{n}", f"GPU{n + 1}") for n in range(0, 8, 2))
    assert [device.numa_node for device in topology.devices] == [3, 3, 1, 1, 0, 0, 2, 2]
    assert any("8 devices would be 4 cards" in line for line in topology.advice)


def test_a_cut_row_of_weights_is_no_asymmetry() -> None:
    (path,) = REPORTS.glob("topology-amd/01-*")
    lines = path.read_text(encoding="utf-8").splitlines()
    row = next(n for n, line in enumerate(lines) if line.startswith("GPU7   30"))
    topology = build(parse_report("\n".join(lines[:row] + lines[row + 1 :])))
    assert topology.problems == ()
    pair = topology.pair("GPU1", "GPU7")
    assert pair is not None and pair.link.hops == 3


def test_xgmi_without_weights_has_no_distances() -> None:
    (domain,) = read("topology-amd/03-").domains
    assert domain.complete is None and domain.meshes == ()


def test_amd_smi_is_joined_by_address() -> None:
    topology = read("topology-amd/06-")
    assert topology.domains[0].complete is True
    assert topology.device("GPU7").bdf == "0000:df:00.0"
    assert {pair.bandwidth_mb_s for pair in topology.pairs} == {50000}


def test_pcie_across_sockets_and_numa_alone() -> None:
    topology = read("topology-amd/08-")
    assert pairs_by_kind(topology) == {"system": 6}
    assert [device.numa_node for device in topology.devices] == [0, 1, 3, 2]
    topology = read("topology-amd/09-")
    assert pairs_by_kind(topology) == {"unknown": 28}
    assert sets(topology, "numa") == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_a_weak_link_among_strong_ones() -> None:
    topology = build(host(8, lambda i, j: "NV17" if {i, j} == {2, 5} else "NV18"))
    (problem,) = topology.problems
    assert (problem.kind, problem.devices) == ("degraded", ("GPU2", "GPU5"))


def test_a_device_that_is_weak_to_all_others_is_named_once() -> None:
    topology = build(host(8, lambda i, j: "NV16" if 3 in (i, j) else "NV18"))
    (problem,) = topology.problems
    assert (problem.kind, problem.devices) == ("degraded", ("GPU3",))


def test_an_asymmetric_link_is_as_strong_as_its_weaker_way() -> None:
    topology = build(host(4, lambda i, j: "SYS" if (i, j) == (1, 2) else "NV4"))
    pair = topology.pair("GPU1", "GPU2")
    assert pair is not None and pair.reverse is not None
    assert pair.link.kind is LinkKind.SYSTEM and pair.reverse.lanes == 4
    assert [problem.kind for problem in topology.problems] == ["asymmetric", "missing"]


def test_bridges_of_other_cards_are_no_measure() -> None:
    names = ["NVIDIA A100-PCIE-40GB"] * 2 + ["NVIDIA RTX A6000"] * 2
    facts = host(
        4, lambda i, j: ("NV12" if i < 2 else "NV4") if i ^ 1 == j else "SYS", names=names
    )
    assert build(facts).problems == ()
    alike = host(4, lambda i, j: ("NV12" if i < 2 else "NV4") if i ^ 1 == j else "SYS")
    assert [problem.devices for problem in build(alike).problems] == [("GPU2", "GPU3")]


def test_half_a_cube_mesh_is_no_fault() -> None:
    lanes = {(0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 2}
    assert build(host(4, lambda i, j: f"NV{lanes[min(i, j), max(i, j)]}")).problems == ()


@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA B200"])
def test_boards_that_are_built_with_nvlink(name: str) -> None:
    (problem,) = build(host(4, lambda i, j: "NODE", names=[name] * 4)).problems
    assert problem.kind == "missing" and "nvidia-fabricmanager" in problem.sentence
    assert build(host(4, lambda i, j: "NV12", names=[name] * 4)).problems == ()


@pytest.mark.parametrize("name", ["NVIDIA H100 PCIe", "NVIDIA H200 NVL", "NVIDIA L40S"])
def test_cards_that_are_not(name: str) -> None:
    assert build(host(4, lambda i, j: "NODE", names=[name] * 4)).problems == ()


def test_geforce_cards_are_not_assumed_to_be_peers() -> None:
    facts = host(2, lambda i, j: "PHB", names=["NVIDIA GeForce RTX 5090"] * 2)
    assert any(line.startswith("GeForce cards: do not assume") for line in build(facts).advice)


def test_wsl_shows_no_distances() -> None:
    wsl = OsFacts(environment=("wsl2",))
    topology = build(host(4, lambda i, j: "SYS", node=lambda i: 0, os=wsl))
    assert pairs_by_kind(topology) == {"unknown": 6}
    assert {device.numa_node for device in topology.devices} == {None}


def test_two_vendors_are_told_apart() -> None:
    cuda, rocm = host(2, lambda i, j: "NV4"), host(2, lambda i, j: "XGMI", vendor="rocm")
    both = HostFacts(
        accelerators=cuda.accelerators + rocm.accelerators, links=cuda.links + rocm.links
    )
    topology = build(both)
    assert [device.label for device in topology.devices] == [
        "cuda GPU0", "cuda GPU1", "rocm GPU0", "rocm GPU1",
    ]  # fmt: skip
    assert [domain.fabric for domain in topology.domains] == ["NVLink", "XGMI"]
    assert [one.vendor for one in topology.maps] == ["cuda", "rocm"]


def test_a_second_table_adds_what_the_first_leaves_open_and_contradictions_are_told() -> None:
    facts = host(3, lambda i, j: "XGMI", vendor="rocm")
    labels = facts.links[0].devices
    weights = LinkMatrix(
        "other", "rocm", labels, (0, 1, 2),
        links=(Link("GPU0", "GPU1", weight=15), Link("GPU1", "GPU2", text="PIX")),
    )  # fmt: skip
    topology = build(replace(facts, links=(*facts.links, weights)))
    first, second = topology.pair("GPU0", "GPU1"), topology.pair("GPU1", "GPU2")
    assert first is not None and first.link.hops == 1
    assert second is not None and second.link.kind is LinkKind.FABRIC
    assert any("two link tables disagree on GPU1 and GPU2" in note for note in topology.notes)
    more = LinkMatrix("third", "rocm", ("GPU7",), (7,))
    assert any(
        "counts other devices" in note
        for note in build(replace(facts, links=(*facts.links, more))).notes
    )


def test_a_node_by_pci_is_surer_than_the_tool_s_column() -> None:
    from vllm_adapter.hostfacts.facts import PciDevice

    pci = PciDevice("0000:3b:00.0", "10de", "2330", "0x030200", numa_node=1)
    facts = host(1, node=lambda i: 0, device=lambda i: {"bdf": "0000:3b:00.0"}, pci=(pci,))
    (device,) = build(facts).devices
    assert (device.numa_node, device.place) == (1, "PCI")


NODES = numa(range(8), range(8, 16))


@pytest.mark.parametrize(
    ("device", "facts", "node", "how"),
    [
        ({"cpus": (8, 9)}, {"numa": NODES}, 1, "its CPU affinity"),
        (
            {"cpus": (8, 9), "cpus_truncated": True},
            {"numa": NODES},
            None,
            "the affinity text is cut",
        ),
        ({"cpus": (7, 8)}, {"numa": NODES}, None, "its CPUs are of several nodes"),
        ({"cpus": (8, 9)}, {}, None, "its CPUs are known"),
        ({"numa_nodes": (0, 1)}, {"numa": NODES}, None, "nodes 0-1 are no single location"),
        ({"numa_nodes": (2,)}, {"numa": NODES}, None, "node 2 has no CPUs here"),
        ({"numa_nodes": (0, 3, 4), "memory_nodes": (2,)}, {}, 0, "the tool's NUMA column: the"),
        ({"numa_nodes": (3, 4), "memory_nodes": (2,)}, {}, None, "nodes 3-4 are no single"),
        ({"numa_nodes": (0, 2)}, {"numa": NODES}, 0, "the tool's NUMA column"),
        ({}, {"numa": numa(range(4))}, 0, "the only node"),
        ({}, {}, None, "not reported"),
    ],
)
def test_where_a_device_is(
    device: dict[str, Any], facts: dict[str, Any], node: int | None, how: str
) -> None:
    found = build(host(1, device=lambda i: device, **facts)).devices[0]
    assert found.numa_node == node and found.place.startswith(how)


def test_equal_affinity_on_two_sockets_is_told() -> None:
    facts = host(2, lambda i, j: "NODE", node=lambda i: 0, cpu=CpuFacts(sockets=2))
    assert any("every device says NUMA node 0" in note for note in build(facts).notes)
    assert build(host(2, lambda i, j: "NODE", node=lambda i: 0)).notes == ()


def test_json_is_plain_and_whole() -> None:
    import json

    raw = json.loads(json.dumps(read("topology-nvidia/15-").to_json()))
    assert set(raw) == {
        "devices", "pairs", "domains", "islands", "nics", "numa", "problems", "notes", "advice",
    }  # fmt: skip
    assert raw["devices"][4]["cpus"] == "32-47,96-111" and len(raw["pairs"]) == 28


@st.composite
def matrices(draw: st.DrawFn, *, symmetric: bool) -> HostFacts:
    count = draw(st.integers(1, 9))
    size = count * count
    cells = draw(st.lists(st.sampled_from(WORDS), min_size=size, max_size=size))

    def link(i: int, j: int) -> str:
        return cells[min(i, j) * count + max(i, j) if symmetric else i * count + j]

    nodes = draw(st.lists(st.none() | st.integers(0, 3), min_size=count, max_size=count))
    vendor = draw(st.sampled_from(["cuda", "rocm", "ascend", "xpu", "hygon"]))
    return host(count, link, vendor=vendor, node=nodes.__getitem__)


@settings(max_examples=examples(100))
@given(matrices(symmetric=False))
def test_groups_are_partitions_and_json_never_fails(facts: HostFacts) -> None:
    topology = build(facts)
    labels = [device.label for device in topology.devices]
    grouped = [label for island in topology.groups() for label in island.devices]
    assert sorted(grouped) == sorted(labels)
    joined = [label for domain in topology.domains for label in domain.devices]
    assert len(joined) == len(set(joined)) and set(joined) <= set(labels)
    assert all(len(domain.devices) > 1 for domain in topology.domains)
    for domain in topology.domains:
        spread = [label for mesh in domain.meshes for label in mesh]
        assert not spread or sorted(spread) == sorted(domain.devices)
    tensor = [label for group in tensor_groups(topology, labels) for label in group]
    assert sorted(tensor) == sorted(labels)
    assert len(topology.pairs) == len(labels) * (len(labels) - 1) // 2
    topology.to_json()


@settings(max_examples=examples(100))
@given(matrices(symmetric=True))
def test_symmetric_tables_have_no_asymmetry(facts: HostFacts) -> None:
    topology = build(facts)
    assert not [problem for problem in topology.problems if problem.kind == "asymmetric"]
    assert all(pair.reverse is None for pair in topology.pairs)


@settings(max_examples=examples(60))
@given(matrices(symmetric=True))
def test_half_a_symmetric_table_says_the_same(facts: HostFacts) -> None:
    (matrix,) = facts.links
    kept = tuple(
        link
        for link in matrix.links
        if matrix.devices.index(link.first) < matrix.devices.index(link.second)
    )
    half = build(replace(facts, links=(replace(matrix, links=kept),)))
    whole = build(facts)
    assert [pair.link.shown for pair in half.pairs] == [pair.link.shown for pair in whole.pairs]
    assert half.domains == whole.domains and half.problems == whole.problems


TABLES = sorted(REPORTS.glob("topology-*/*.txt")) + sorted(REPORTS.glob("*/*topo*.txt"))


@settings(max_examples=examples(150))
@given(st.sampled_from(TABLES), st.floats(0, 1), st.booleans())
def test_a_cut_report_finds_no_new_fault_and_no_other_place(
    path: Path, share: float, one_line: bool
) -> None:
    raw = path.read_bytes()
    whole = build(parse_report(raw))
    if one_line:
        lines = raw.split(b"\n")
        del lines[min(int(share * len(lines)), len(lines) - 1)]
        cut = build(parse_report(b"\n".join(lines)))
    else:
        cut = build(parse_report(raw[: int(share * len(raw))]))
    assert {one.kind for one in cut.problems} <= {one.kind for one in whole.problems}
    right = {device.label: device for device in whole.devices}
    for device in cut.devices:
        if device.label in right and right[device.label].numa_node is not None:
            assert device.numa_node in (None, right[device.label].numa_node)
    for pair in cut.pairs:
        known = whole.pair(pair.first, pair.second)
        if known is not None and LinkKind.UNKNOWN not in (pair.link.kind, known.link.kind):
            assert (pair.link.kind, pair.link.lanes) == (known.link.kind, known.link.lanes)
            assert pair.link.hops in (None, known.link.hops)
