"""The vendors' packages: figures and their sources, which descriptor a device gets, impostors."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import pytest

from vllm_adapter.contract.manifest import read_manifest
from vllm_adapter.discovery.descriptors import choose, live_values, load_all, narrowed
from vllm_adapter.hostfacts.facts import (
    Accelerator,
    DeviceNode,
    Driver,
    HostFacts,
    OsFacts,
    PciDevice,
)
from vllm_adapter.hostfacts.known_vendors import VENDORS
from vllm_adapter.hostfacts.match import match
from vllm_adapter_conformance.rules.l0_hardware import ASSUMED_SHARE, kinds
from vllm_adapter_doctor.devices.driver_rules import negotiate
from vllm_adapter_doctor.devices.recognition import recognise
from vllm_adapter_doctor.devices.verdict import Outcome
from vllm_adapter_doctor.vendor_data.driver_tables import NVIDIA_MINIMUM, toolkit_table

pytestmark = pytest.mark.static

ROOT = Path(__file__).parents[2] / "adapters"
NAMES = ("cuda", "rocm", "xpu", "ascend", "gaudi", "musa", "mlu", "biren")
MANIFESTS = {
    name: read_manifest(ROOT / name / f"src/vllm_adapter_{name}/adapter.json") for name in NAMES
}
DESCRIBED = {name: load_all(manifest) for name, manifest in MANIFESTS.items()}
ALL = [(name, one) for name in NAMES for one in DESCRIBED[name]]
IDS = [f"{name}:{Path(one.origin).stem}" for name, one in ALL]


def stem(capability):
    return None if capability is None else Path(capability.origin).stem


def test_figures_by_source_and_vendor(capsys):
    """The table of the documents; a descriptor's own share is held below a fifth by L0, too."""
    table = {name: sum((kinds(one) for one in DESCRIBED[name]), Counter()) for name in NAMES}
    with capsys.disabled():
        print("\nvendor   descriptors  datasheet  queried  measured  assumed")
        for name, found in table.items():
            counts = [found[kind] for kind in ("datasheet", "queried", "measured", "assumed")]
            print(f"{name:8} {len(DESCRIBED[name]):11}  " + "  ".join(f"{n:8}" for n in counts))
    assert all(found["assumed"] <= ASSUMED_SHARE * sum(found.values()) for found in table.values())


@pytest.mark.parametrize(("name", "one"), ALL, ids=IDS)
def test_a_descriptor_keeps_what_we_promise(name, one):
    found = kinds(one)
    assert found["assumed"] <= ASSUMED_SHARE * sum(found.values())
    assert not found["measured"] or stem(one) in MANIFESTS[name].tested_on
    for section in ("identity", "compute_units", "memory", "execution", "numerics", "kv", "vllm"):
        source = one.raw[section].get("source")
        assert source is None or source["reference"].strip(), section
    assert all(source["reference"].strip() for source in one.raw.get("sources", {}).values())
    assert one.match, "a descriptor without conditions would be anybody's"
    assert one.vllm.dist_backend and one.vllm.visible_devices_variable
    assert one.identity.torch_type == MANIFESTS[name].device.torch_type


@pytest.mark.parametrize(("name", "one"), ALL, ids=IDS)
def test_rates_are_those_of_their_formula(name, one):
    """Declared peaks and units x ops x clock differ by rounding alone: 2 per cent."""
    for dtype, unit in one.compute_units.items():
        parts = (unit.ops_per_clock_per_unit, unit.units, unit.clock_ghz)
        if None not in (*parts, unit.throughput_gflops):
            product = parts[0] * parts[1] * parts[2]
            assert product == pytest.approx(unit.throughput_gflops, rel=0.02), dtype


@pytest.mark.parametrize(("name", "one"), ALL, ids=IDS)
def test_pointers_of_sources_lead_somewhere(name, one):
    for pointer in one.raw.get("sources", {}):
        one.source(pointer)


def test_what_is_said_of_hardware():
    assert MANIFESTS["cuda"].tested_on == ("sm_90-h200",)
    for name in NAMES[1:]:
        assert MANIFESTS[name].tested_on == ()
        readme = (ROOT / name / "README.md").read_text(encoding="utf-8")
        assert "Not run on hardware" in readme, name


@pytest.mark.parametrize("name", NAMES)
def test_an_adapter_is_data_and_a_reader_of_health(name):
    project = tomllib.loads((ROOT / name / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    readers = project["entry-points"].get("vllm_adapter.health", {})
    files = ["__init__.py", *(f"{value.rpartition('.')[2]}.py" for value in readers.values())]
    assert sorted(file.name for file in (ROOT / name / "src").rglob("*.py")) == files


@pytest.mark.parametrize("name", NAMES)
def test_a_torch_of_the_vendors_own_is_not_replaced(name):
    text = (ROOT / name / "pyproject.toml").read_text(encoding="utf-8")
    stock = MANIFESTS[name].device.torch_module is None
    assert ("[torch]" in text) is stock


@pytest.mark.parametrize("name", NAMES)
def test_the_table_of_vendors_says_the_same(name):
    row = VENDORS[name]
    ids = {entry.get("pci_vendor") for entry in MANIFESTS[name].match}
    assert row.pci is None or ids == {row.pci}
    assert row.torch_type in (None, MANIFESTS[name].device.torch_type)
    for one in DESCRIBED[name]:
        if row.container_visible is not None:
            assert one.vllm.container_visible_devices_variable == row.container_visible
        if name != "rocm" and row.visible is not None:  # vLLM's variable for AMD is CUDA's
            assert one.vllm.visible_devices_variable == row.visible


def test_drivers_are_those_of_the_tables():
    for one in DESCRIBED["cuda"]:
        rows = {row["version"]: row["minimum"] for row in one.driver["builds"]}
        assert rows == NVIDIA_MINIMUM
    for one in DESCRIBED["rocm"]:
        rows = {row["version"]: list(row["tested"]) for row in one.driver["builds"]}
        assert rows == toolkit_table("hip", "drivers")


PCI = [
    ("cuda", "2335", "sm_90-h200"),
    ("cuda", "233b", None),  # H200 NVL: nothing was read
    ("cuda", "2330", "sm_90-h100-sxm"),
    ("cuda", "2331", "sm_90-h100-pcie"),
    ("cuda", "2321", "sm_90-h100-nvl"),
    ("cuda", "2329", None),  # H20
    ("cuda", "20b0", "sm_80-a100-sxm-40gb"),
    ("cuda", "20b1", "sm_80-a100-pcie-40gb"),
    ("cuda", "20b2", "sm_80-a100-sxm-80gb"),
    ("cuda", "20b5", "sm_80-a100-pcie-80gb"),
    ("cuda", "2236", "sm_86-a10"),
    ("cuda", "2237", None),  # A10G
    ("cuda", "26b9", "sm_89-l40s"),
    ("cuda", "27b8", "sm_89-l4"),
    ("cuda", "1eb8", "sm_75-t4"),
    ("cuda", "2684", "sm_89-rtx4090"),
    ("cuda", "2b85", "sm_120-rtx5090"),
    ("cuda", "2bb4", "sm_120-rtxpro6000"),
    ("cuda", "2901", "sm_100-b200"),
    ("cuda", "2941", "sm_100-gb200"),
    ("cuda", "3182", "sm_103-b300"),
    ("cuda", "2e12", "sm_121-gb10"),
    ("rocm", "74a1", "gfx942-mi300x"),
    ("rocm", "74b5", "gfx942-mi300x"),
    ("rocm", "74a5", "gfx942-mi325x"),
    ("rocm", "74a2", "gfx942-mi308x"),
    ("rocm", "74a0", "gfx942-mi300a"),
    ("rocm", "75a0", "gfx950-mi350x"),
    ("rocm", "75a3", "gfx950-mi355x"),
    ("rocm", "75a8", "gfx950"),
    ("rocm", "7408", "gfx90a-mi250x"),
    ("rocm", "740f", "gfx90a-mi210"),
    ("rocm", "744c", "gfx1100"),
    ("rocm", "7550", "gfx1201-rx9070xt"),
    ("rocm", "7551", "gfx1201-r9700"),
    ("rocm", "738c", None),  # MI100
    ("xpu", "0bd5", "xe-hpc-max1550"),
    ("xpu", "0bda", "xe-hpc-max1100"),
    ("xpu", "56a0", "xe-hpg-a770"),
    ("xpu", "56c0", "xe-hpg"),
    ("xpu", "e20b", "xe2-hpg-b580"),
    ("xpu", "e211", "xe2-hpg-b60"),
    ("xpu", "e223", "xe2-hpg-b70"),
    ("ascend", "d802", "910b"),
    ("ascend", "d803", "910_93"),
    ("ascend", "d500", "310p"),
    ("ascend", "d801", None),  # 910
    ("gaudi", "1020", "gaudi2"),
    ("gaudi", "1060", "gaudi3"),
    ("gaudi", "1063", "gaudi3"),
    ("gaudi", "1000", None),
    ("musa", "0327", "mp_22-s4000"),
    ("musa", "0201", "mp_21-s80"),
    ("mlu", "0370", "mlu370"),
]


@pytest.mark.parametrize(("name", "device", "expected"), PCI)
def test_by_pci_id(name, device, expected):
    function = PciDevice("0000:3b:00.0", VENDORS[name].pci, device, "0x120000")
    host = narrowed(HostFacts(), function, None)
    assert stem(choose(DESCRIBED[name], host)) == expected


TOLD = [
    ("cuda", "NVIDIA H200", "sm_90", "sm_90-h200"),
    ("cuda", "NVIDIA H100 80GB HBM3", "sm_90", "sm_90-h100-sxm"),
    ("cuda", "NVIDIA H100 NVL", "sm_90", "sm_90-h100-nvl"),
    ("cuda", "NVIDIA H20", "sm_90", "sm_90"),
    ("cuda", "NVIDIA L20Z", "sm_90", "sm_90"),
    ("cuda", "NVIDIA Graphics Device", "sm_80", "sm_80"),
    ("cuda", "NVIDIA A100-SXM4-80GB", "sm_80", "sm_80-a100-sxm-80gb"),
    ("cuda", "NVIDIA A800-SXM4-80GB", "sm_80", "sm_80"),
    ("cuda", "NVIDIA A10", "sm_86", "sm_86-a10"),
    ("cuda", "NVIDIA A10G", "sm_86", "sm_86"),
    ("cuda", "NVIDIA GeForce RTX 4090", "sm_89", "sm_89-rtx4090"),
    ("cuda", "NVIDIA GeForce RTX 4090 Laptop GPU", "sm_89", "sm_89"),
    ("cuda", "Tesla V100-SXM2-32GB", "sm_70", None),
    ("cuda", "NVIDIA GeForce RTX 2080 Ti", "sm_75", "sm_75"),
    ("cuda", "NVIDIA H200", None, "sm_90-h200"),
    ("rocm", "AMD Radeon Graphics", "gfx942", "gfx942"),  # a name without amdgpu.ids
    ("rocm", "AMD Instinct MI300X OAM", "gfx942", "gfx942-mi300x"),
    ("rocm", "AMD Instinct MI300X VF", "gfx942", "gfx942-mi300x"),
    ("rocm", "AMD Instinct MI250X", "gfx90a", "gfx90a-mi250x"),
    ("rocm", "AMD Instinct MI250", "gfx90a", "gfx90a-mi250"),
    ("rocm", "AMD Radeon RX 7900 XTX", "gfx1100", "gfx1100-rx7900xtx"),
    ("rocm", "AMD Radeon RX 7900 XT", "gfx1100", "gfx1100-rx7900xt"),
    ("rocm", "AMD Instinct MI100", "gfx908", None),
    ("xpu", "Intel(R) Data Center GPU Max 1550", None, "xe-hpc-max1550"),
    ("xpu", "Intel(R) Arc(TM) Pro B60 Graphics", None, "xe2-hpg-b60"),
    ("ascend", "910B1", "910b1", "910b1"),
    ("ascend", "910B3", None, "910b3"),
    ("ascend", "Ascend910B4", None, "910b4"),
    ("ascend", "910B4-1", "910b4-1", "910b4-1"),
    ("ascend", "Ascend910_9392", None, "910_93"),
    ("ascend", "310P3", None, "310p"),
    ("ascend", "910A", None, None),
    ("ascend", "Ascend910", None, None),
    ("gaudi", "HL-225", None, "gaudi2"),
    ("musa", "MTT S4000", None, "mp_22-s4000"),
    ("musa", "MTT S5000", None, "mp_31-s5000"),
    ("mlu", "MLU590-M9", None, "mlu590"),
    ("biren", "Biren106B", None, "br106"),
]


@pytest.mark.parametrize(("name", "told", "arch", "expected"), TOLD)
def test_by_what_a_tool_told(name, told, arch, expected):
    one = Accelerator(name, 0, "test", name=told, arch=arch)
    found = recognise(MANIFESTS[name], HostFacts(accelerators=(one,)), DESCRIBED[name])
    assert [stem(device.capability) for device in found] == [expected] * len(found)
    assert len(found) == (2 if "1550" in told else 1)  # a card of two stacks is two devices


def test_a_name_tells_the_bin_that_a_pci_id_does_not():
    function = PciDevice("0000:c1:00.0", "19e5", "d802", "0x120000")
    one = Accelerator("ascend", 0, "npu-smi", name="910B4", bdf=function.bdf)
    host = HostFacts(pci=(function,), accelerators=(one,))
    (found,) = recognise(MANIFESTS["ascend"], host, DESCRIBED["ascend"])
    assert stem(found.capability) == "910b4"
    assert found.capability.memory.bandwidth_gb_s == 800


IMPOSTORS = [
    (("1d94", "6211", "0x120000"), ("/dev/kfd", "/dev/mkfd", "/dev/dri/renderD128")),
    (("9999", "0a01", "0x030200"), ("/dev/mxcd", "/dev/dri/renderD128", "/dev/nvidia0")),
    (("1e3e", "0001", "0x030200"), ("/dev/nvidia0",)),
    (("1ded", "6001", "0x030200"), ("/dev/nvidia0",)),  # T-Head
    (("1d22", "3684", "0x120000"), ("/dev/dri/renderD128",)),  # Kunlunxin's xpu-smi
    (("8086", "46a6", "0x030000"), ("/dev/dri/renderD128",)),  # in the processor
    (("1002", "164e", "0x030000"), ("/dev/kfd", "/dev/dri/renderD128")),  # Raphael
    (("1002", "1638", "0x038000"), ("/dev/kfd", "/dev/dri/renderD128")),  # Cezanne
    (("1002", "1586", "0x038000"), ("/dev/kfd", "/dev/dri/renderD128")),  # Strix Halo
    (("19e5", "1711", "0x030000"), ("/dev/davinci0",)),  # a management controller
    (("10de", "22a3", "0x068000"), ("/dev/nvidia0",)),  # NVSwitch
]


@pytest.mark.parametrize(("function", "nodes"), IMPOSTORS)
def test_impostors_and_bystanders_match_nobody(function, nodes):
    host = HostFacts(
        pci=(PciDevice("0000:3b:00.0", *function),),
        nodes=tuple(DeviceNode(path, "char", True, True) for path in nodes),
    )
    for name in NAMES:
        assert match(MANIFESTS[name].match, host) is None, name
        assert recognise(MANIFESTS[name], host, DESCRIBED[name]) == (), name


def test_devices_of_impostors_belong_to_their_makers():
    told = [
        Accelerator("hygon", 0, "hy-smi", name="K100_AI"),
        Accelerator("metax", 0, "torch", name="MetaX C500", arch="sm_80"),
        Accelerator("kunlunxin", 0, "xpu-smi", name="P800"),
        Accelerator("thead", 0, "nvidia-smi", name="PPU-ZW810E"),
    ]
    for name in NAMES:
        assert recognise(MANIFESTS[name], HostFacts(accelerators=tuple(told))) == ()


def test_graphics_inside_a_processor_is_no_device_but_a_package_with_its_own_memory_is():
    inside = Accelerator("xpu", 0, "torch", name="Intel(R) Graphics", integrated=True)
    assert recognise(MANIFESTS["xpu"], HostFacts(accelerators=(inside,))) == ()
    apu = Accelerator(
        "rocm", 0, "torch", name="AMD Instinct MI300A", arch="gfx942", integrated=True
    )
    (found,) = recognise(MANIFESTS["rocm"], HostFacts(accelerators=(apu,)))
    assert found.capability.memory.unified


def test_a_partition_scales_with_its_units():
    one = Accelerator(
        "rocm",
        0,
        "torch",
        name="AMD Instinct MI300X",
        arch="gfx942",
        partition="CPX",
        compute_units=38,
        memory_total_bytes=24 << 30,
    )
    (found,) = recognise(MANIFESTS["rocm"], HostFacts(accelerators=(one,)))
    unit = found.capability.compute_units["float16"]
    assert (unit.units, found.capability.memory.capacity_bytes) == (38, 24 << 30)
    assert unit.peak_gflops == pytest.approx(1_307_443 / 8, rel=1e-3)
    assert found.capability.memory.bandwidth_gb_s is None
    assert found.capability.source("/compute_units/float16/units").kind == "queried"


def test_a_partition_of_unknown_size_has_no_rates():
    one = Accelerator(
        "cuda", 0, "nvidia-smi", name="NVIDIA H200", arch="sm_90", partition="1g.18gb"
    )
    (found,) = recognise(MANIFESTS["cuda"], HostFacts(accelerators=(one,)))
    assert found.capability.compute_units["float16"].peak_gflops is None
    assert found.capability.memory.capacity_bytes == 18 << 30  # the profile's name says so


def test_live_values_that_agree_change_nothing_but_the_size():
    (h200,) = [one for one in DESCRIBED["cuda"] if stem(one) == "sm_90-h200"]
    assert live_values(h200, units=132) == {}
    live = live_values(h200, units=132, memory_bytes=150_000_000_000)
    assert live == {"memory": {"capacity_bytes": 150_000_000_000}}
    mig = h200.refined(live_values(h200, units=16))
    assert mig.compute_units["bfloat16"].units == 16
    assert mig.compute_units["bfloat16"].peak_gflops == pytest.approx(989_400 * 16 / 132)


def test_fp8_downgrades_where_the_chip_has_none():
    says = {}
    for name, one in ALL:
        lost = [d for d in negotiate(one, HostFacts(), ["float8_e4m3fn"]) if d.to is not None]
        says[f"{name}:{stem(one)}"] = lost[0].to if lost else None
    expected = {
        "cuda:sm_75-t4": "float16",
        "cuda:sm_80": "bfloat16",
        "cuda:sm_89-l4": None,
        "rocm:gfx90a-mi250x": "bfloat16",
        "rocm:gfx942-mi300x": None,
        "xpu:xe-hpc-max1550": "bfloat16",
        "xpu:xe2-hpg-b580": "bfloat16",
        "ascend:910b2": "bfloat16",
        "gaudi:gaudi2": None,
        "musa:mp_22-s4000": "bfloat16",
        "musa:mp_21-s80": "float16",
    }
    assert {key: says[key] for key in expected} == expected


def test_a_blackwell_on_an_older_driver_is_refused_with_a_sentence():
    (b200,) = [one for one in DESCRIBED["cuda"] if stem(one) == "sm_100-b200"]
    host = HostFacts(os=OsFacts("Linux"), drivers=(Driver("nvidia", "565.57.01", "test"),))
    (one,) = negotiate(b200, host)
    assert one.outcome is Outcome.REFUSE and "570.26" in one.message


def test_advice_and_numbers_that_others_get_wrong():
    by_stem = {f"{name}:{stem(one)}": one for name, one in ALL}
    assert by_stem["rocm:gfx942-mi300x"].identity.capability_id == (9, 4)
    assert by_stem["rocm:gfx942-mi300x"].numerics.fp8_max == 240
    assert by_stem["rocm:gfx942-mi300x"].execution.subgroup_size == 64
    assert by_stem["gaudi:gaudi2"].numerics.fp8_flavour == "e4m3fn"
    assert by_stem["gaudi:gaudi2"].numerics.fp8_max == 240
    assert by_stem["gaudi:gaudi3"].numerics.fp8_max == 448
    for name in ("ascend", "gaudi"):
        for one in DESCRIBED[name]:
            assert one.kv.block_multiple == 128 and one.execution.subgroup_size is None
    assert {one.memory.transfer_alignment_bytes for one in DESCRIBED["ascend"]} == {2 << 20}
    assert by_stem["musa:mp_22-s4000"].execution.subgroup_size == 128
    assert by_stem["musa:mp_31-s5000"].execution.subgroup_size == 32
    assert {one.execution.subgroup_size for one in DESCRIBED["cuda"]} == {32}
    assert by_stem["cuda:sm_89-rtx4090"].compute_units["float16"].accumulate == "float32"


def test_no_operator_is_declared_where_torch_is_the_vendors_own():
    for name, one in ALL:
        assert bool(one.operators) is (name in ("cuda", "rocm", "xpu"))


def test_what_nvidias_compute_capabilities_begin_with():
    for one in DESCRIBED["cuda"]:
        major, minor = one.identity.capability_id
        level = 10 * major + minor
        assert one.numerics.native_bfloat16 is (level >= 80)
        assert one.numerics.native_fp8 is (level >= 89)
        assert one.numerics.native_fp4 is (level >= 100)
