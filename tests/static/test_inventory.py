"""One list of devices from many views: joined by bus and UUID, never by row."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter.hostfacts.facts import (
    Accelerator,
    CpuFacts,
    DeviceNode,
    HostFacts,
    LinkMatrix,
    MemoryFacts,
    PciDevice,
    TorchBuild,
)
from vllm_adapter.hostfacts.known_vendors import BY_PCI, VENDORS, is_integrated, vendor_of
from vllm_adapter_doctor.devices.inventory import inventory

pytestmark = pytest.mark.static

GIB = 1 << 30
IGPU = PciDevice("0000:00:02.0", "8086", "a7a0", "0x030000", driver="i915")
ARC = PciDevice("0000:03:00.0", "8086", "56a0", "0x030000", 0, "xe")
OPTIMUS = PciDevice("0000:01:00.0", "10de", "2684", "0x030200", driver="nvidia")
H200 = PciDevice("0000:3b:00.0", "10de", "2335", "0x030200", 1)
H200_B = PciDevice("0000:86:00.0", "10de", "2335", "0x030200", 0)


def ids(facts):
    return [device.id for device in inventory(facts).devices]


def smi(index, **more):
    return Accelerator("cuda", index, "nvidia-smi", **more)


def test_nothing_told_is_no_device():
    assert inventory(HostFacts()).devices == ()


def test_a_3d_controller_is_a_device_and_the_processors_graphics_are_integrated():
    found = inventory(HostFacts(pci=(IGPU, OPTIMUS), memory=MemoryFacts(32 * GIB)))
    graphics, gpu = found.devices
    assert (graphics.id, graphics.integrated, graphics.system_memory) == ("xpu:0", True, True)
    assert graphics.memory_total_bytes == 32 * GIB
    assert (gpu.id, gpu.title, gpu.system_memory) == ("cuda:0", "GeForce RTX 4090", False)


def test_bridges_switches_and_display_chips_are_none():
    switch = PciDevice("0000:05:00.0", "10de", "22a3", "0x068000")
    bmc = PciDevice("0000:04:00.0", "1a03", "2000", "0x030000")
    audio = PciDevice("0000:01:00.1", "10de", "22ba", "0x040300")
    assert ids(HostFacts(pci=(switch, bmc, audio))) == []


def test_a_tool_and_the_bus_are_joined_by_address():
    facts = HostFacts(
        accelerators=(smi(0, bdf="0000:86:00.0", name="a"), smi(1, bdf="0000:3b:00.0", name="b")),
        pci=(H200, H200_B),
    )
    first, second = inventory(facts).devices
    assert (first.name, first.bdf, first.numa_node) == ("a", "0000:86:00.0", 0)
    assert (second.name, second.bdf, second.numa_node) == ("b", "0000:3b:00.0", 1)
    assert len(first.evidence) == 2


def test_the_kernels_node_counts_more_than_a_printed_affinity():
    facts = HostFacts(accelerators=(smi(0, bdf="0000:3b:00.0", numa_nodes=(0,)),), pci=(H200,))
    assert inventory(facts).devices[0].numa_node == 1
    several = HostFacts(accelerators=(smi(0, numa_nodes=(0, 1)),))
    assert inventory(several).devices[0].numa_node is None


def test_devices_without_an_address_are_joined_only_where_there_is_one_of_each():
    one = inventory(HostFacts(accelerators=(smi(0, name="x"),), pci=(H200,)))
    assert [(d.name, d.bdf) for d in one.devices] == [("x", "0000:3b:00.0")]
    two = inventory(HostFacts(accelerators=(smi(0), smi(1)), pci=(H200, H200_B)))
    assert [d.bdf for d in two.devices] == [None, None]
    more = inventory(HostFacts(accelerators=(smi(0),), pci=(H200, H200_B)))
    assert len(more.devices) == 1 and "cannot be joined" in more.notes[0]


def test_a_discrete_device_is_not_joined_with_the_processors_graphics():
    arc = Accelerator("xpu", 0, "xpu-smi discovery", name="Intel Arc A770", integrated=False)
    found = inventory(HostFacts(accelerators=(arc,), pci=(IGPU, ARC))).devices
    assert [(d.id, d.bdf, d.integrated) for d in found] == [
        ("xpu:0", "0000:03:00.0", False),
        ("xpu:1", "0000:00:02.0", True),
    ]


def test_devices_of_the_host_that_the_tool_does_not_see_follow():
    facts = HostFacts(accelerators=(smi(0, bdf="0000:86:00.0"),), pci=(H200, H200_B))
    assert [(d.id, d.physical) for d in inventory(facts).devices] == [
        ("cuda:0", 0),
        ("cuda:1", None),
    ]


def test_the_bus_is_believed_against_a_borrowed_face():
    facts = HostFacts(
        accelerators=(smi(0, bdf="0000:01:00.0", name="MetaX C500"),),
        pci=(PciDevice("0000:01:00.0", "9999", "0a01", "0x030200"),),
    )
    found = inventory(facts)
    assert [d.id for d in found.devices] == ["metax:0"]
    assert "MetaX" in found.notes[0]


def test_kfd_alone_proves_no_vendor():
    def node(path):
        return DeviceNode(path, "char", True, True)

    found = inventory(HostFacts(nodes=(node("/dev/kfd"),)))
    assert found.devices == () and "AMD's or Hygon's" in found.notes[0]
    found = inventory(HostFacts(nodes=(node("/dev/kfd"), node("/dev/mkfd"))))
    assert found.devices == () and "Hygon's, for" in found.notes[0]


def test_numbered_nodes_tell_of_devices_where_nothing_else_does():
    nodes = tuple(DeviceNode(f"/dev/davinci{n}", "char", True, True) for n in (3, 5))
    found = inventory(HostFacts(nodes=nodes)).devices
    assert [(d.id, d.physical) for d in found] == [("ascend:0", 3), ("ascend:1", 5)]
    shared = (DeviceNode("/dev/accel/accel0", "char", True, True),)
    assert inventory(HostFacts(nodes=shared)).devices == ()


def test_an_npu_whose_number_starts_at_one_is_logical_device_0():
    npu = Accelerator("ascend", 1, "npu-smi info", name="910B4", card=1, die=0)
    (device,) = inventory(HostFacts(accelerators=(npu,))).devices
    assert (device.id, device.physical) == ("ascend:0", 1)


def test_two_dies_of_a_card_are_two_devices():
    dies = tuple(
        Accelerator("ascend", card, "npu-smi info", card=card, die=die, bdf=f"0000:{card}1:00.0")
        for card in (0, 1)
        for die in (0, 1)
    )
    found = inventory(HostFacts(accelerators=dies)).devices
    assert [(d.id, d.card, d.die) for d in found] == [
        ("ascend:0", 0, 0),
        ("ascend:1", 0, 1),
        ("ascend:2", 1, 0),
        ("ascend:3", 1, 1),
    ]


@pytest.mark.parametrize(("how", "count"), [(None, 2), ("FLAT", 2), ("COMPOSITE", 1)])
def test_stacks_of_one_card(how, count):
    card = PciDevice("0000:3a:00.0", "8086", "0bd5", "0x038000")
    environment = (("ZE_FLAT_DEVICE_HIERARCHY", how),) if how else ()
    pvc = Accelerator("xpu", 0, "xpu-smi", bdf=card.bdf, memory_total_bytes=128 * GIB)
    found = inventory(HostFacts(accelerators=(pvc,), pci=(card,), environment=environment))
    assert len(found.devices) == count
    assert sum(d.memory_total_bytes for d in found.devices) == 128 * GIB
    single = PciDevice("0000:3a:00.0", "8086", "0bda", "0x038000")
    assert len(inventory(HostFacts(pci=(single,))).devices) == 1


def test_mig_instances_replace_their_gpu():
    facts = HostFacts(
        accelerators=(
            smi(0, uuid="GPU-a"),
            smi(0, uuid="MIG-1", partition="3g.40gb"),
            smi(0, uuid="MIG-2", partition="3g.40gb"),
            smi(1, uuid="GPU-b"),
        )
    )
    found = inventory(facts)
    assert [d.uuid for d in found.devices] == ["MIG-1", "MIG-2", "GPU-b"]
    assert [d.index for d in found.devices] == [0, 1, 2]
    assert "MIG" in found.notes[0]


def torch_view(count, name="NVIDIA GeForce RTX 4090"):
    return tuple(Accelerator("cuda", i, "torch", name=name, arch="sm_89") for i in range(count))


ROWS = LinkMatrix("nvidia-smi topo", "cuda", ("GPU0", "GPU1", "GPU2", "GPU3"), (0, 1, 2, 3))


def test_torch_sees_fewer_than_there_are_and_nobody_says_which():
    found = inventory(HostFacts(accelerators=torch_view(3), links=(ROWS,)))
    assert [d.id for d in found.devices] == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    assert {d.name for d in found.devices} == {None}
    assert "torch sees 3 of 4" in found.notes[0] and "RTX 4090" in found.notes[0]


def test_torch_names_all_where_all_are_alike_and_seen():
    found = inventory(HostFacts(accelerators=torch_view(4), links=(ROWS,)))
    assert {(d.name, d.arch, d.visible) for d in found.devices} == {
        ("NVIDIA GeForce RTX 4090", "sm_89", True)
    }
    unlike = (*torch_view(3), Accelerator("cuda", 3, "torch", name="other"))
    found = inventory(HostFacts(accelerators=unlike, links=(ROWS,)))
    assert {d.name for d in found.devices} == {None}


def test_torch_alone_is_a_view_too():
    found = inventory(HostFacts(accelerators=torch_view(2)))
    assert [(d.id, d.visible) for d in found.devices] == [("cuda:0", True), ("cuda:1", True)]


def test_a_count_of_torch_is_of_its_own_vendor():
    facts = HostFacts(
        accelerators=(smi(0), smi(1)), torch=TorchBuild(cuda="12.8", visible_devices=1)
    )
    assert "torch sees 1 of 2" in inventory(facts).notes[0]
    other = replace(facts, torch=TorchBuild(hip="6.4", visible_devices=1))
    assert inventory(other).notes == ()


def test_memory_that_is_the_cpus_own():
    apu = Accelerator("rocm", 0, "rocm-smi", name="AMD Instinct MI300A", memory_total_bytes=GIB)
    (device,) = inventory(HostFacts(accelerators=(apu,))).devices
    assert (device.unified_memory, device.integrated, device.system_memory) == (True, False, True)
    strix = Accelerator("rocm", 0, "torch", name="AMD Radeon Graphics", arch="gfx1151")
    (device,) = inventory(HostFacts(accelerators=(strix,))).devices
    assert device.integrated
    mi300 = Accelerator("rocm", 0, "torch", name="AMD Radeon Graphics", arch="gfx942")
    (device,) = inventory(HostFacts(accelerators=(mi300,))).devices
    assert not device.integrated and not device.system_memory


@pytest.mark.parametrize(
    ("name", "integrated"),
    [
        ("Intel Raptor Lake-P [Iris Xe Graphics]", True),
        ("Intel(R) UHD Graphics 770", True),
        ("Intel(R) Arc(TM) 140V GPU", True),
        ("Intel(R) Arc(TM) Graphics", True),
        ("Intel(R) Arc(TM) Pro B60 Graphics", None),
        ("DG2 [Arc A770]", None),
        ("Intel(R) Data Center GPU Max 1100", None),
    ],
)
def test_names_of_integrated_graphics(name, integrated):
    gpu = Accelerator("xpu", 0, "torch", name=name)
    assert inventory(HostFacts(accelerators=(gpu,))).devices[0].integrated is integrated


def test_the_table_of_vendors_is_of_one_piece():
    assert set(BY_PCI) == {row.pci for row in VENDORS.values() if row.pci}
    for name, row in VENDORS.items():
        assert row.adapter == name and row.source
        assert all("{n}" in node for node in row.numbered)
    assert vendor_of(PciDevice("0000:00:05.0", "1d0f", "7364", "0x088000")).adapter == "neuron"
    assert vendor_of(PciDevice("0000:00:05.0", "1d0f", "ec20", "0x020000")) is None
    assert is_integrated(PciDevice("0000:c5:00.0", "1002", "150e", "0x038000"))
    assert not is_integrated(PciDevice("0000:c5:00.0", "1002", "74a0", "0x120000"))


ACCELERATORS = st.builds(
    Accelerator,
    st.sampled_from(["cuda", "rocm", "xpu", "ascend", "gaudi", "acme"]),
    st.integers(0, 3),
    st.sampled_from(["nvidia-smi", "torch", "lspci", "npu-smi info", "kernel log"]),
    name=st.sampled_from([None, "X", "Data Center GPU Max 1550", "Iris Xe"]),
    logical=st.sampled_from([None, 0, 7]),
    die=st.sampled_from([None, 0, 1]),
    bdf=st.sampled_from([None, "0000:3b:00.0", "0000:03:00.0"]),
    uuid=st.sampled_from([None, "GPU-1"]),
    partition=st.sampled_from([None, "1g.5gb", "CPX"]),
)


@given(
    st.lists(ACCELERATORS, max_size=6),
    st.sets(st.sampled_from([IGPU, ARC, H200, H200_B, OPTIMUS])),
)
def test_ids_are_unique_and_no_view_makes_it_fail(accelerators, pci):
    found = inventory(HostFacts(accelerators=tuple(accelerators), pci=tuple(pci)))
    names = [device.id for device in found.devices]
    assert len(set(names)) == len(names)
    told = {one.vendor for one in accelerators} | {
        row.adapter for p in pci if (row := vendor_of(p))
    }
    assert {device.vendor for device in found.devices} <= told
    json.dumps([device.to_json() for device in found.devices])


def test_the_kernels_numbers_are_kept():
    log = tuple(Accelerator("gaudi", n, "kernel log") for n in (1, 3, 0, 6))
    assert ids(HostFacts(accelerators=log)) == ["gaudi:0", "gaudi:1", "gaudi:3", "gaudi:6"]


def test_a_list_of_names_and_torchs_first_device_count_together():
    names = tuple(Accelerator("xpu", n, "xpu-smi discovery", name="B60") for n in (1, 2))
    first = Accelerator("xpu", 0, "torch", name="B60", memory_total_bytes=24 * GIB)
    found = inventory(HostFacts(accelerators=(first, *names)))
    assert [d.id for d in found.devices] == ["xpu:0", "xpu:1", "xpu:2"] and not found.notes


def test_a_processor_that_is_the_accelerator_names_all_of_its_kind():
    first = Accelerator("rocm", 0, "torch", name="AMD Instinct MI300A", arch="gfx942")
    rows = tuple(Accelerator("rocm", n, "rocm-smi", numa_nodes=(n,)) for n in range(4))
    cpu = CpuFacts(model="AMD Instinct MI300A Accelerator")
    found = inventory(HostFacts(accelerators=(first, *rows), cpu=cpu))
    assert {(d.name, d.arch, d.system_memory) for d in found.devices} == {
        ("AMD Instinct MI300A", "gfx942", True)
    }
    assert len(found.devices) == 4 and found.notes == ()
    other = inventory(HostFacts(accelerators=(first, *rows), cpu=CpuFacts(model="EPYC")))
    assert {d.name for d in other.devices} == {None}


def test_virtual_functions_beside_their_physical_one_are_not_counted():
    flex = [PciDevice(f"0000:4d:00.{n}", "8086", "56c0", "0x038000") for n in range(5)]
    found = inventory(HostFacts(pci=tuple(flex)))
    assert [one.bdf for one in found.devices] == ["0000:4d:00.0"]
    assert any("4 virtual functions" in note for note in found.notes)
    given_away = inventory(HostFacts(pci=tuple(flex[1:])))  # a guest sees them alone
    assert len(given_away.devices) == 4
