"""vLLM's NUMA flags: one value a visible device, never a CPU that may not be used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from topologies import host, numa

from vllm_adapter.hostfacts.facts import CpuFacts, CpuSet, HostFacts, NumaNode, TorchBuild
from vllm_adapter_doctor.report.read import parse_report
from vllm_adapter_doctor.topology.numa_map import NumaMap, numactl_list, span
from vllm_adapter_doctor.topology.read import build

pytestmark = pytest.mark.static

REPORTS = Path(__file__).parents[1] / "data" / "reports"
NODES = numa(range(4), range(4, 8))
VLLM_CPU_LIST = re.compile(r"^\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*$")
"""What vLLM takes. # upstream: vllm@v0.32.0 vllm/config/parallel.py:34"""


def two(i: int) -> int:
    return i // 2


def of(facts: HostFacts) -> NumaMap:
    (found,) = build(facts).maps
    return found


def box(**facts: Any) -> HostFacts:
    """Four devices on two nodes of four CPUs."""
    return host(4, node=two, **{"numa": NODES, **facts})


def test_flags_of_two_nodes() -> None:
    assert " ".join(of(box()).flags) == (
        "--numa-bind --numa-bind-nodes 0 0 1 1 --numa-bind-cpus 0-3 0-3 4-7 4-7"
    )


def test_cpus_are_cut_by_the_cpuset_by_offline_ones_and_by_the_affinity() -> None:
    facts = box(
        cpuset=CpuSet(cpus=(1, 2, 3, 4, 5, 6, 7)),
        cpu=CpuFacts(offline=(7,)),
        device=lambda i: {"cpus": (0, 1, 2) if i < 2 else (4, 5, 6, 7)},
    )
    assert of(facts).cpus == ("1-2", "1-2", "4-6", "4-6")


def test_a_node_without_a_usable_cpu_is_a_sentence() -> None:
    found = of(box(cpuset=CpuSet(cpus=(0, 1))))
    assert found.flags == () and "no CPU of node 1 (GPU2)" in found.sentence


def test_a_node_whose_memory_is_not_allowed_is_a_sentence() -> None:
    found = of(box(cpuset=CpuSet(memory_nodes=(0,))))
    assert found.flags == () and "may not use the memory of node 1 (GPU2)" in found.sentence


def test_one_node_is_nothing_to_bind() -> None:
    assert of(host(2, numa=numa(range(8)))).sentence == "one NUMA node: nothing to bind"
    hbm = (*numa(range(8)), NumaNode(1, (), 1 << 30))
    assert of(host(2, numa=hbm)).sentence == "one NUMA node: nothing to bind"
    assert of(host(2, node=lambda i: 0)).sentence.endswith("nothing to bind")


def test_an_unknown_node_is_never_guessed() -> None:
    found = of(host(2, node=lambda i: 0 if i else None, numa=NODES))
    assert found.flags == () and "the NUMA node of GPU0 is not known" in found.sentence


def test_truncated_cpus_are_left_to_numactl() -> None:
    facts = host(4, node=two, device=lambda i: {"cpus": (0, 2, 4), "cpus_truncated": True})
    assert of(facts).flags == ("--numa-bind", "--numa-bind-nodes", "0", "0", "1", "1")


@pytest.mark.parametrize(
    ("vendor", "name", "value", "devices"),
    [
        ("cuda", "CUDA_VISIBLE_DEVICES", "3,1", ("GPU3", "GPU1")),
        ("rocm", "HIP_VISIBLE_DEVICES", "2", ("GPU2",)),
        ("rocm", "CUDA_VISIBLE_DEVICES", "0,2", ("GPU0", "GPU2")),
        ("ascend", "ASCEND_RT_VISIBLE_DEVICES", "1, 2", ("GPU1", "GPU2")),
        ("cuda", "CUDA_VISIBLE_DEVICES", "all", ("GPU0", "GPU1", "GPU2", "GPU3")),
        ("cuda", "HIP_VISIBLE_DEVICES", "1", ("GPU0", "GPU1", "GPU2", "GPU3")),
    ],
)
def test_visible_devices_in_their_order(
    vendor: str, name: str, value: str, devices: tuple[str, ...]
) -> None:
    found = of(box(vendor=vendor, environment=((name, value),)))
    assert found.devices == devices
    assert found.nodes == tuple(int(label[3:]) // 2 for label in devices)


@pytest.mark.parametrize("value", ["4", "GPU-1f2e", "", "-1", "0,0", "0;1"])
def test_a_list_that_cannot_be_read_gives_no_flags(value: str) -> None:
    found = of(box(environment=(("CUDA_VISIBLE_DEVICES", value),)))
    assert found.flags == () and "CUDA_VISIBLE_DEVICES" in found.sentence


def test_a_list_of_uuids() -> None:
    uuids = ["GPU-1a", "GPU-1b", "GPU-2c", "GPU-3d"]
    facts = box(
        device=lambda i: {"uuid": uuids[i]},
        environment=(("CUDA_VISIBLE_DEVICES", "GPU-3d,gpu-1B"),),
    )
    assert of(facts).devices == ("GPU3", "GPU1")
    vague = box(
        device=lambda i: {"uuid": uuids[i]}, environment=(("CUDA_VISIBLE_DEVICES", "GPU-1"),)
    )
    assert of(vague).flags == ()


def test_unlike_cards_are_counted_by_bus_address_only_if_cuda_is_told() -> None:
    names = ["NVIDIA A100-PCIE-40GB", "NVIDIA L4", "NVIDIA L4", "NVIDIA L4"]
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in of(box(names=names)).sentence
    told = box(names=names, environment=(("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),))
    assert "CUDA_DEVICE_ORDER" not in of(told).sentence


def test_two_lists_at_once_give_no_flags() -> None:
    both = (("HIP_VISIBLE_DEVICES", "0"), ("ROCR_VISIBLE_DEVICES", "1"))
    assert of(box(vendor="rocm", environment=both)).flags == ()


def test_a_torch_that_sees_fewer_devices_gives_no_flags() -> None:
    found = of(box(torch=TorchBuild("2.9.0", cuda="12.8", visible_devices=3)))
    assert found.flags == () and "torch sees 3 devices" in found.sentence


@pytest.mark.parametrize(
    ("report", "nodes"),
    [
        ("topology-nvidia/01-", "0 0 0 0 1 1 1 1"),
        ("topology-nvidia/15-", "0 0 0 0 2 2 2 2"),
        ("topology-nvidia/35-", "0 0 1 1"),
        ("topology-nvidia/37-", "1 0 0 0 0"),
        ("topology-nvidia/34-", "1"),
        ("topology-nvidia/29-", "0 0"),
        ("topology-nvidia/06-", ""),
        ("topology-nvidia/11-", ""),
        ("topology-nvidia/24-", ""),
        ("topology-nvidia/32-", ""),
        ("topology-amd/01-", "3 3 1 1 0 0 2 2"),
        ("topology-amd/03-", ""),
        ("topology-amd/08-", "0 1 3 2"),
        ("topology-amd/09-", "0 0 0 0 1 1 1 1"),
        ("other-vendors/04-", "0 0 0 0 1 1 1 1"),
    ],
)
def test_reports(report: str, nodes: str) -> None:
    (path,) = REPORTS.glob(f"{report}*")
    assert " ".join(map(str, of(parse_report(path.read_bytes())).nodes)) == nodes


def test_short_lists() -> None:
    assert numactl_list((5, 1, 2, 3, 9)) == "1-3,5,9" and numactl_list(()) == ""
    assert span(["GPU0", "GPU1", "GPU3", "mlx5_bond", "NIC10"]) == "GPU0-1,3, mlx5_bond, NIC10"


@settings(max_examples=examples(100))
@given(
    nodes=st.lists(st.none() | st.integers(0, 3), min_size=1, max_size=8),
    affinity=st.lists(st.frozensets(st.integers(0, 40)), min_size=8, max_size=8),
    cut=st.booleans(),
    allowed=st.frozensets(st.integers(0, 40)),
    offline=st.frozensets(st.integers(0, 40), max_size=5),
    known=st.booleans(),
)
def test_no_map_names_a_cpu_that_may_not_be_used(
    nodes: list[int | None],
    affinity: list[frozenset[int]],
    cut: bool,
    allowed: frozenset[int],
    offline: frozenset[int],
    known: bool,
) -> None:
    facts = host(
        len(nodes),
        node=nodes.__getitem__,
        device=lambda i: {"cpus": tuple(sorted(affinity[i])), "cpus_truncated": cut},
        numa=numa(range(10), range(10, 20), range(20, 30)) if known else (),
        cpuset=CpuSet(cpus=tuple(sorted(allowed))),
        cpu=CpuFacts(offline=tuple(sorted(offline))),
    )
    found = of(facts)
    usable = (allowed or frozenset(range(64))) - offline
    if found.flags:
        assert len(found.nodes) == len(found.devices) == len(nodes)
        assert len(found.cpus) in (0, len(nodes))
        assert found.flags[0] == "--numa-bind"  # vLLM refuses the others without it
    for text in found.cpus:
        assert VLLM_CPU_LIST.fullmatch(text)
        for part in text.split(","):
            first, _, last = part.partition("-")
            assert set(range(int(first), int(last or first) + 1)) <= usable
    for device in build(facts).devices:
        assert set(device.cpus) <= usable
        if cut and not known:
            assert device.cpus == ()
