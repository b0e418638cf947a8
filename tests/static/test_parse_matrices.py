"""Link matrices: the cases' answers, and other tools and versions."""

from __future__ import annotations

import pytest
from matrix_text import CASES, DATA, facts_of

from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_doctor.report.parsers._common import cpu_list
from vllm_adapter_doctor.report.read import parse_report

pytestmark = pytest.mark.static


def case(name: str) -> HostFacts:
    (path,) = (path for path in CASES if path.name.startswith(name) or name in str(path))
    return facts_of(path.read_bytes().decode())


def rows(facts: HostFacts, table: int = 0) -> list[str]:
    """The links of the devices among themselves, a line each."""
    found = facts.links[table]
    cell = {(link.first, link.second): link.text or "?" for link in found.links}
    return [
        " ".join("-" if a == b else cell.get((a, b), "?") for b in found.devices)
        for a in found.devices
    ]


def places(facts: HostFacts) -> list[tuple[int, ...]]:
    return [device.numa_nodes for device in facts.accelerators]


def cpus(facts: HostFacts) -> list[tuple[int, ...]]:
    return [device.cpus for device in facts.accelerators]


HALVES = [(0,)] * 4 + [(1,)] * 4
SWITCHES = ["- PIX PIX PIX", "PIX - PIX PIX", "PIX PIX - PIX", "PIX PIX PIX -"]


@pytest.mark.parametrize(
    ("name", "nodes", "first", "last"),
    [
        ("01-8xh100", HALVES, "0-95,192-287", "96-191,288-383"),
        ("02-8xl40s", HALVES, "0-47,96-143", "48-95,144-191"),
        ("03-8x4090", HALVES, "0-35,72-107", "36-71,108-143"),
        ("05-8xv100", [(1,)] * 8, "20-39", "20-39"),
        ("06-2xa6000", [(0,)] * 2, "0-191", "0-191"),
        ("07-2x5090", [(0,)] * 2, "0-31", "0-31"),
        ("09-8xh20", HALVES, "0-95,192-287", "96-191,288-383"),
        ("11-2xl20", [(), (1,)], "", "88-91,184-187"),
        ("13-4xh100", [(0,), (0,), (1,), (1,)], "", ""),
        ("15-8xa800", [(0,)] * 4 + [(2,)] * 4, "0-15,64-79", "32-47,96-111"),
        ("17-8xa100", HALVES, "0-35,72-107", "36-71,108-143"),
        ("19-8xa6000", HALVES, "0-13,56-69", "14-27,70-83"),
        ("20-1xada6000", [(1,)], "44-65", "44-65"),
        ("21-10x4080", [(0,)] * 5 + [(1,)] * 5, "0-15,32-47", "16-31,48-63"),
        ("22-4xa100", [(0,), (1,), (2,), (3,)], "0-23", "72-95"),
        ("24-8x-l20z", [(0, 1)] * 8, "0-129", "0-129"),
        ("25-1xt4", [()], "0-15", "0-15"),
        ("27-8xb200", HALVES, "0-55,112-167", "56-111,168-223"),
        ("28-4xh100nvl", [(0, 1)] * 4, "0-253", "0-253"),
        ("29-2-of-8", [(0,)] * 2, "1-47,97-143", "1-47,97-143"),
        ("30-8xl40", HALVES, "2-89", "92-177"),
        ("31-8xa800", HALVES, "0-63,128-191", "64-127,192-255"),
        ("32-4x4090-wsl", [()] * 4, "", ""),
        ("34-1xa100", [(1,)], "116-231", "116-231"),
        ("35-4xgb200", [(0,), (0,), (1,), (1,)], "0-71", "72-143"),
        ("36-8x4090", HALVES, "0-55,112-167", "56-111,168-223"),
        ("37-5gpu", [(1,), (0,), (0,), (0,), (0,)], "8-15,24-31", "0-7,16-23"),
        ("38-2017", [()] * 8, "0-9,20-29", ""),
        ("ascend/01", [()] * 8, "144-167", "48-71"),
        ("ascend/03", [()] * 8, "0-63,128-191", "64-127,192-255"),
        ("intel/01", [()] * 2, "0-143", "0-143"),
        ("intel/03", [()] * 8, "", "128-255,384-511"),
        ("other-vendors/04", HALVES, "0-31,64-95", "32-63,96-127"),
        ("collect-env/01", [()], "0-3", "0-3"),
        ("collect-env/17", HALVES, "0-7,16-23", "8-15,24-31"),
        ("collect-env/21", [()] * 4, "", ""),
    ],
)
def test_cases_place_each_device(name, nodes, first, last):
    facts = case(name)
    assert places(facts) == nodes
    assert cpus(facts)[0] == cpu_list(first)
    assert cpus(facts)[-1] == cpu_list(last)
    assert len(facts.links) == 1
    assert len(facts.links[0].devices) == len(nodes) == len(facts.accelerators)


@pytest.mark.parametrize("name", ["01-8xh100", "09-8xh20", "24-8x-l20z", "27-8xb200"])
def test_one_nvlink_domain_of_eight(name):
    assert set(" ".join(rows(case(name))).split()) == {"-", "NV18"}


def test_links_of_cases():
    assert [row.removesuffix(" SYS" * 4) for row in rows(case("03-8x4090"))[:4]] == SWITCHES
    mixed = rows(case("15-8xa800"))
    assert mixed[0] == "- PIX NV8 PIX SYS SYS SYS SYS"
    assert mixed[5] == "SYS SYS SYS SYS PIX - NV4 PIX"
    assert rows(case("17-8xa100"))[7] == "SYS SYS SYS SYS NODE NODE PXB -"
    assert rows(case("intel/01")) == ["- XL24", "XL24 -"]
    assert rows(case("intel/03"))[0] == "- NODE NODE NODE SYS SYS SYS SYS"
    assert set(" ".join(rows(case("ascend/01"))).split()) == {"-", "HCCS"}


def test_makers_of_cases():
    assert {d.vendor for d in case("ascend/01").accelerators} == {"ascend"}
    assert {d.vendor for d in case("intel/03").accelerators} == {"xpu"}
    assert {d.vendor for d in case("other-vendors/04").accelerators} == {"musa"}


def test_cut_lists_of_cpus_are_not_used():
    assert all(device.cpus_truncated for device in case("13-4xh100").accelerators)


def test_memory_of_grace_is_no_place_for_threads():
    assert [d.memory_nodes for d in case("35-4xgb200").accelerators] == [(2,), (10,), (18,), (26,)]


def test_capped_and_overwritten_list_of_network_cards():
    found = case("11-2xl20").links[0]
    names = dict(found.nic_names)
    assert len(found.nics) == 62
    assert not {"NIC0", "NIC1", "NIC2", "NIC3"} & set(names)
    assert names["NIC4"] == "mlx5_10"
    assert any("122 found, 62 shown" in note for note in found.notes)
    assert any("NIC0, NIC1, NIC2, NIC3 are overwritten" in note for note in found.notes)


def test_missing_rows_are_told_and_completed_from_columns():
    found = case("38-2017")
    assert any("GPU5, GPU6, GPU7, mlx4_0 are missing" in note for note in found.links[0].notes)
    assert rows(found)[7] == "SYS SYS SYS SYS PHB ? ? -"
    assert found.links[0].nics == ("mlx4_0",)


def test_peer_access_is_no_link_table():
    (found,) = case("39-p2p").links
    assert (found.kind, {link.text for link in found.links}) == ("peer", {"GNS"})


def test_a_report_brings_all_of_it():
    text = "\n".join(
        path.read_text() for path in CASES if "39-" in str(path) or "06-" in str(path)
    )
    facts = parse_report(text)
    assert [table.kind for table in facts.links] == ["links", "peer"]
    assert places(facts) == [(0,), (0,)]


# Other tools and versions


def test_metax_has_the_node_before_the_cpus():
    facts = facts_of(
        "mx-smi  version: 2.2.9\n\nAttached GPUs                 : 3\nDevice link type matrix\n"
        "        GPU0    GPU1    GPU2    Node Affinity  CPU Affinity\n"
        "GPU0    X       MX      NODE    0              0-15,128-143\n"
        "GPU1    MX      X       ETH     2              32-47,160-175\n"
        "GPU2    NODE    ETH     X       2              32-47,160-175\n"
    )
    assert {device.vendor for device in facts.accelerators} == {"metax"}
    assert places(facts) == [(0,), (2,), (2,)]
    assert cpus(facts)[0] == cpu_list("0-15,128-143")
    assert rows(facts) == ["- MX NODE", "MX - ETH", "NODE ETH -"]


def test_a_look_alike_tool_is_not_nvidia():
    table = (
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\n"
        "GPU0\t X \tPIX\t16-31\t1\nGPU1\tPIX\t X \t16-31\t1\n"
    )
    assert {d.vendor for d in facts_of("$ ixsmi topo -m\n" + table).accelerators} == {"iluvatar"}
    assert {d.vendor for d in facts_of("$ nvidia-smi topo -m\n" + table).accelerators} == {"cuda"}
    both = "+ IX-ML: 4.4.0 +\n$ nvidia-smi topo -m\n" + table
    assert {d.vendor for d in facts_of(both).accelerators} == {"cuda"}


def test_dies_of_an_a3():
    facts = facts_of(
        "Ascend Topology:\n           Phy-ID12   Phy-ID13   Phy-ID14\n"
        "Phy-ID12   X          SIO        HCCS_SW\nPhy-ID13   SIO        X          NA\n"
        "Phy-ID14   HCCS_SW    NA         X\n\nLegend:\n\n  X    = Self\n"
    )
    assert rows(facts) == ["- SIO HCCS_SW", "SIO - NA", "HCCS_SW NA -"]
    assert [(d.index, d.die) for d in facts.accelerators] == [(6, 0), (6, 1), (7, 0)]
    assert facts.links[0].indices == (12, 13, 14)


def test_network_cards_of_an_a5():
    facts = facts_of(
        "\t   NPU0       NPU1       NIC0       CPU Affinity\n"
        "NPU0       X          UB         PIX        0-47\n"
        "NPU1       UB         X          SYS        48-95\n"
        "NIC0       PIX        SYS        X\n\nNIC0: hns_0\n"
    )
    assert cpus(facts) == [cpu_list("0-47"), cpu_list("48-95")]
    assert facts.links[0].nic_names == (("NIC0", "hns_0"),)


def test_tiles_between_bars():
    facts = facts_of(
        "         GPU 0/0|GPU 0/1|GPU 1/0|GPU 1/1|CPU Affinity\n"
        "GPU 0/0 |S      |MDF    |XL*    |XL16   |0-23,48-71\n"
        "GPU 0/1 |MDF    |S      |XL16   |XL*    |0-23,48-71\n"
        "GPU 1/0 |XL*    |XL16   |S      |MDF    |24-47,72-95\n"
        "GPU 1/1 |XL16   |XL*    |MDF    |S      |24-47,72-95\n"
    )
    assert rows(facts)[1] == "MDF - XL16 XL*"
    assert [(d.index, d.die) for d in facts.accelerators] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert cpus(facts)[3] == cpu_list("24-47,72-95")


GAUDI = (
    "modID   CPU Affinity    NUMA Affinity\n-----   ------------    -------------\n"
    "0       0-39, 80-119    0\n1       40-79, 120-159          1\n"
)


def test_modules_of_gaudi():
    facts = facts_of(GAUDI)
    assert places(facts) == [(0,), (1,)]
    assert cpus(facts) == [cpu_list("0-39,80-119"), cpu_list("40-79,120-159")]


def test_a_module_is_no_device_number():
    frame = "| HL-SMI Version:  hl-1.21.0 |\n"
    assert facts_of(frame + GAUDI) == HostFacts()
    named = facts_of(frame + "index, module_id\n0, 1\n1, 0\n" + GAUDI)
    assert {d.index: d.numa_nodes for d in named.accelerators} == {1: (0,), 0: (1,)}


@pytest.mark.parametrize("corner", ["", "ROUTER"])
def test_a_grid_without_a_maker_is_nobodys(corner):
    grid = f"| {corner} | Device 0 | Device 1 |\n| Device 0 | X | SYS |\n| Device 1 | SYS | X |\n"
    assert facts_of(grid) == HostFacts()


def test_blank_cells_of_a_grid():
    facts = facts_of(
        "| MTHREADS | Device 0 | Device 1 | CPU Affinity | NUMA Affinity |\n"
        "|----------|----------|----------|--------------|---------------|\n"
        "| Device 0 | X        | LINK     |              | 1             |\n"
        "| Device 1 | LINK     | X        | 0-31         |               |\n"
    )
    assert places(facts) == [(1,), ()]
    assert cpus(facts) == [(), cpu_list("0-31")]


def test_tables_of_amd_are_not_ours():
    for name in ("01-8gcd", "08-4xpcie"):
        for path in DATA.glob(f"topology-amd/{name}*"):
            assert facts_of(path.read_text()) == HostFacts()


# Damage to single values


@pytest.mark.parametrize(
    ("tail", "cpu", "node"),
    [
        ("0-35,72-107\t0\t\tN/A", "0-35,72-107", (0,)),
        ("144-1911N/A", "144-191", (1,)),  # no other way to read it
        ("0-351N/A", "", ()),  # 0-35 and 1, or 0-3 and 51
        ("0-35,72-107\t0N/A", "0-35,72-107", (0,)),
        ("0-35,72-107 0 N/A", "0-35,72-107", (0,)),
        ("\t\t\tN/A", "", ()),
        ("\t1\t\tN/A", "", (1,)),  # no CPUs: the node is not theirs
        ("0-15\t\t\tN/A", "", ()),  # or 0-1 and 5
        ("0-15\tsome words", "", ()),
        ("0,2,4,6,8,10\t0\t\tN/A", "", (0,)),
        ("0-35,72-10\t0\t\tN/A", "", (0,)),
        ("0-35,72-\t0\t\tN/A", "", (0,)),
    ],
)
def test_values_behind_the_cells(tail, cpu, node):
    facts = facts_of(
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        f"GPU0\t X \tSYS\t{tail}\nGPU1\tSYS\t X \t99-100\t7\t\tN/A\n"
    )
    assert (cpus(facts)[0], places(facts)[0]) == (cpu_list(cpu), node)
    assert (cpus(facts)[1], places(facts)[1]) == ((99, 100), (7,))


def test_a_number_glued_to_lanes_is_neither():
    facts = facts_of(
        "        GPU0    GPU1CPU Affinity    NUMA Affinity\n"
        "GPU0     X      NV180-35    0\nGPU1    NV18     X 36-71    1\n"
    )
    assert cpus(facts)[0] == ()
    assert rows(facts) == ["- NV18", "NV18 -"]


def test_two_boxes_that_disagree_place_nobody():
    one = "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-15\t0\n"
    two = one.replace("0-15\t0", "0-15\t1")
    facts = facts_of(f"host a\n{one}\nhost b\n{two}")
    assert (places(facts), cpus(facts)) == ([()], [cpu_list("0-15")])
    assert len(facts_of(one + "\n\n" + one).links) == 1


@pytest.mark.parametrize(
    "text",
    [
        "use GPU0 and GPU1 together",
        "GPU0 X",
        "GPU0 GPU1\nGPU0 is busy\nGPU1 is idle",
        "  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks",
        "GPU0: NVIDIA H100\nGPU1: NVIDIA H100",
    ],
)
def test_prose_invents_no_device(text):
    assert facts_of(text) == HostFacts()
