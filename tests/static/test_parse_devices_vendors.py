"""Tables of Ascend, Gaudi, AMD, Hygon, Intel, MetaX, Moore Threads and Cambricon tools."""

from __future__ import annotations

import pytest
from device_samples import disagreements, read, sample
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_adapter.hostfacts.device_facts import DeviceProcess

pytestmark = pytest.mark.static

MIB = 1 << 20


def versions(facts) -> dict[str, str]:
    return {driver.component: driver.version for driver in facts.drivers}


def tool(parser: str, path: str):
    return read(parser, sample(f"tool_outputs/{path}"))


def test_eight_ascend_a2():
    facts = read("npu_smi", sample("reports/ascend/04-npu-smi-8x910b3.txt"))
    assert versions(facts) == {"ascend": "24.1.rc1.b030"}
    assert [one.index for one in facts.accelerators] == list(range(8))
    assert {one.arch for one in facts.accelerators} == {"910b3"}
    assert {one.memory_total_bytes for one in facts.accelerators} == {65536 * MIB}
    assert {one.health.status for one in facts.accelerators} == {"OK"}
    assert facts.accelerators[4].bdf == "0000:01:00.0"


def test_an_npu_whose_number_starts_at_one():
    facts = read("npu_smi", sample("reports/ascend/05-npu-smi-1x910b4-id-starts-at-1.txt"))
    (device,) = facts.accelerators
    assert (device.index, device.card, device.logical) == (1, 1, 0)
    assert (device.memory_total_bytes, device.health.power_w) == (32768 * MIB, 95.9)
    assert device.processes == ()


def test_the_table_inside_a_collectors_report():
    facts = read("npu_smi", sample("reports/ascend/07-collect-env-8x910b2-openeuler.txt"))
    assert [one.bdf for one in facts.accelerators][:2] == ["0000:c1:00.0", "0000:01:00.0"]
    assert {one.arch for one in facts.accelerators} == {"910b2"}


def test_who_holds_an_npu():
    text = sample("reports/ascend/05-npu-smi-1x910b4-id-starts-at-1.txt").replace(
        "| No running processes found in NPU 1                                                    "
        "        |",
        "| 1       0                 | 124528        | VLLM::Worker_TP0         | 17400           "
        "        |",
    )
    (device,) = read("npu_smi", text).accelerators
    assert device.processes == (DeviceProcess(124528, "VLLM::Worker_TP0", 17400 * MIB),)


def test_an_npu_that_tells_nothing():
    text = sample("reports/ascend/05-npu-smi-1x910b4-id-starts-at-1.txt")
    text = text.replace("| OK            | 95.9        39 ", "| Offline       | NA          NA ")
    text = text.replace("2826 / 32768 ", "NA   / NA    ")
    (device,) = read("npu_smi", text).accelerators
    assert (device.health.status, device.health.power_w) == ("Offline", None)
    assert device.memory_total_bytes is None


def test_two_chips_of_an_a3_board():
    first, second = tool("npu_smi", "npu-smi-a3.txt").accelerators
    assert (first.index, first.die, first.logical) == (0, 0, 0)
    assert (second.index, second.die, second.logical) == (0, 1, 1)
    assert second.health.power_w is None  # one meter for both
    assert first.arch is None  # "Ascend910" is all of them


def test_a_310p_has_no_hbm_column():
    (device,) = tool("npu_smi", "npu-smi-310p.txt").accelerators
    assert (device.arch, device.memory_total_bytes) == ("310p3", 21534 * MIB)


def test_a5_has_neither_chip_nor_bus():
    first, second = tool("npu_smi", "npu-smi-a5.txt").accelerators
    assert (first.index, first.logical, first.bdf) == (2, 0, None)
    assert (second.index, second.logical, second.health.status) == (3, 1, "Alarm")
    assert second.processes == (DeviceProcess(1001, "python", 256 * MIB),)


def test_the_map_leaves_controllers_out():
    devices = tool("npu_smi", "npu-smi-map.txt").accelerators
    assert [(one.index, one.logical) for one in devices] == [(1, 0), (2, 1)]


def test_the_map_numbers_the_tables_devices():
    table = sample("reports/ascend/05-npu-smi-1x910b4-id-starts-at-1.txt")
    text = table + sample("tool_outputs/npu-smi-map.txt").replace(
        "1                              0                              0",
        "1                              0                              5",
    )
    devices = read("npu_smi", text).accelerators
    assert [(one.index, one.logical) for one in devices] == [(1, 5), (2, 1)]
    assert devices[0].memory_total_bytes == 32768 * MIB


@given(st.integers(1, 16), st.integers(0, 3), st.integers(0, 6000))
@settings(max_examples=examples(40))
def test_npu_tables_of_one_to_sixteen(count, first, end):
    head = sample("reports/ascend/05-npu-smi-1x910b4-id-starts-at-1.txt").splitlines()[:6]
    rows = [
        f"| {first + place:<5} 910B4               | OK            | 95.9        39"
        "                0    / 0             |\n"
        f"| 0                         | 0000:{place:02X}:00.0  | {place}           0    / 0"
        f"          {2000 + place:>4} / 32768         |\n"
        for place in range(count)
    ]
    text = "\n".join(head) + "\n" + "".join(rows)
    found = read("npu_smi", text)
    assert [(one.index, one.logical) for one in found.accelerators] == [
        (first + place, place) for place in range(count)
    ]
    assert [one.memory_used_bytes for one in found.accelerators] == [
        (2000 + place) * MIB for place in range(count)
    ]
    assert not disagreements(read("npu_smi", text[:end]), found)


def test_eight_gaudi_of_which_one_is_busy():
    facts = read("vendor_tables", sample("reports/other-vendors/01-hl-smi-8xgaudi2-one-busy.txt"))
    assert len(facts.accelerators) == 8
    assert {(one.vendor, one.name) for one in facts.accelerators} == {("gaudi", "HL-225")}
    assert facts.accelerators[0].bdf == "0000:b3:00.0"
    busy = facts.accelerators[6]
    assert (busy.bdf, busy.memory_used_bytes) == ("0000:43:00.0", 27098 * MIB)
    assert busy.processes == (DeviceProcess(618796, "ray::ServeRepli", 26330 * MIB),)
    assert all(not one.processes for one in facts.accelerators if one is not busy)
    assert versions(facts) == {
        "habanalabs": "1.16.0-94aac46",
        "habanalabs-firmware": "50.1.2.0",
    }


def test_gaudi_3_and_the_list():
    facts = tool("vendor_tables", "hl-smi-gaudi3.txt")
    first, second = facts.accelerators
    assert versions(facts)["habanalabs"] == "1.23.0-2eae87a"  # not the network's driver
    assert (first.name, first.memory_total_bytes) == ("HL-325L", 131072 * MIB)
    assert (first.health.utilization_percent, first.health.power_cap_w) == (4, 900)
    assert second.health.errors == ("7 uncorrectable memory errors",)
    listed = tool("vendor_tables", "hl-smi-list.txt").accelerators
    assert [(one.index, one.bdf, one.name) for one in listed] == [
        (0, "0000:43:00.0", "HL-225"),
        (1, "0000:44:00.0", "HL-225"),
    ]
    assert listed[0].health.status == "Operational"


def test_amd_smi_counts_megabytes_by_1024():
    facts = tool("vendor_tables", "amd-smi-overview.txt")
    first, second = facts.accelerators
    assert versions(facts) == {"amdgpu": "6.12.12", "rocm": "7.0.0"}
    assert first.memory_total_bytes == 196592 * MIB
    assert (first.partition, first.bdf) == ("SPX/NPS1", "0000:0c:00.0")
    assert (first.health.power_w, first.health.power_cap_w) == (734, 750)
    assert first.processes[0].pid == 15222
    assert second.health.errors == ("3 uncorrectable memory errors",)


def test_an_in_tree_amdgpu_has_no_version():
    text = sample("tool_outputs/amd-smi-overview.txt").replace("6.12.12 ", "Linuxver")
    assert versions(read("vendor_tables", text)) == {"rocm": "7.0.0"}


def test_amd_smi_as_text_and_json():
    by_index = {one.index: one for one in tool("vendor_tables", "amd-smi-static.txt").accelerators}
    assert (by_index[0].arch, by_index[0].partition) == ("gfx942", "CPX/NPS4")
    assert (by_index[0].die, by_index[4].arch) == (3, "gfx950")
    assert by_index[4].memory_total_bytes == 294896 * MIB


def test_rocm_smi_of_three_ages():
    first, second, third = tool("rocm_smi", "rocm-smi.txt").accelerators
    assert (first.name, first.arch) == ("AMD Instinct MI300X", "gfx942")
    assert first.memory_total_bytes == 206141652992
    assert (second.partition, second.health.utilization_percent) == ("SPX/NPS1", 7)
    assert (third.health.power_cap_w, third.partition) == (304, None)


def test_the_agents_of_rocms_runtime():
    facts = tool("rocminfo", "rocminfo.txt")
    card, part = facts.accelerators
    assert versions(facts) == {"amdgpu": "6.7.0"}
    assert (card.index, card.arch, card.compute_units) == (0, "gfx942", 304)
    assert card.memory_total_bytes == 201310208 * 1024
    assert (part.arch, part.integrated, part.unified_memory) == ("gfx1103", True, True)
    assert part.memory_total_bytes is None


def test_what_level_zero_shows():
    card, part = tool("sycl_ls", "sycl-ls.txt").accelerators
    assert (card.index, card.name) == (0, "Intel(R) Arc(TM) A770 Graphics")
    assert (card.integrated, part.integrated) == (False, True)


def test_hygon_counts_in_mib():
    text = "HCU[0]\t\t: vram Total Memory (MiB): 65520\nHCU[0]\t\t: HCU use (%): 15.0\n"
    (device,) = read("rocm_smi", text).accelerators
    assert (device.vendor, device.memory_total_bytes) == ("hygon", 65520 * MIB)
    assert device.health.utilization_percent == 15


def test_rocms_face_with_hygons_silicon():
    devices = tool("rocm_smi", "hy-smi.txt").accelerators
    assert [(one.vendor, one.health.power_cap_w) for one in devices] == [("hygon", 800)] * 2


def test_rocm_smi_without_devices():
    text = (
        "======= ROCm System Management Interface =======\nWARNING: No AMD GPUs specified\n"
        "======= Concise Info =======\n"
        "GPU  Temp  AvgPwr  SCLK  MCLK  Fan  Perf  PwrCap  VRAM%  GPU%\n===========\n"
    )
    assert read("rocm_smi", text).accelerators == ()


def test_intels_discovery_and_overview():
    first, second = tool("vendor_tables", "xpu-smi-discovery.txt").accelerators
    assert (first.bdf, first.memory_total_bytes) == ("0000:4b:00.0", None)
    assert second.memory_total_bytes == 131072 * MIB
    facts = tool("vendor_tables", "xpu-smi-2-overview.txt")
    assert versions(facts) == {"level-zero": "1.27.0"}
    assert facts.accelerators[0].processes == (DeviceProcess(2874292, "xpu-smi", 206 * MIB),)


def test_intels_json_and_dump():
    text = """\
{"device_list": [{"device_id": 0, "device_name": "Intel(R) Arc(TM) Pro B60 Graphics",
 "pci_bdf_address": "0000:18:00.0", "vendor_name": "Intel(R) Corporation",
 "memory_physical_size_byte": "25669140480"}]}
"""
    (device,) = read("vendor_tables", text).accelerators
    assert (device.bdf, device.memory_total_bytes) == ("0000:18:00.0", 25669140480)
    dump = 'Device ID,Device Name,PCI BDF Address\n0,"Intel(R) Arc(TM) B580","0000:03:00.0"\n'
    assert read("vendor_tables", dump).accelerators[0].bdf == "0000:03:00.0"


def test_metax_says_who_holds_a_device():
    facts = tool("vendor_tables", "mx-smi.txt")
    first, second = facts.accelerators
    assert versions(facts) == {"metax": "3.0.11", "maca": "3.1.0.14"}
    assert (first.health.status, first.health.utilization_percent) == ("Available", 3)
    assert second.processes == (DeviceProcess(3011117, "python3.10", 60000 * MIB),)


def test_metax_lists_states():
    text = (
        "GPU#0    MXC500      0000:08:00.0   Available (UUID: GPU-aaaa-0)\n"
        "GPU#2    MXC500      0000:0e:00.0   Not Available (UUID: GPU-aaaa-2)\n"
    )
    devices = read("vendor_tables", text).accelerators
    assert [(one.index, one.health.status) for one in devices] == [
        (0, "Available"),
        (2, "Not Available"),
    ]


def test_moore_threads():
    facts = tool("vendor_tables", "mthreads-gmi.txt")
    (device,) = facts.accelerators
    assert versions(facts) == {"mtgpu": "3.0.0"}
    assert (device.name, device.memory_total_bytes) == ("MTT S80", 16384 * MIB)
    assert [one.memory_bytes for one in device.processes] == [134 * MIB, 19 * MIB]


@pytest.mark.parametrize(
    ("path", "driver", "bdf"),
    [("cnmon.txt", "5.10.13", "0000:39:00.0"), ("cnmon-4.txt", "4.20.11", None)],
)
def test_cambricon_of_two_ages(path, driver, bdf):
    facts = tool("vendor_tables", path)
    assert versions(facts) == {"cambricon": driver}
    assert (facts.accelerators[0].vendor, facts.accelerators[0].bdf) == ("mlu", bdf)
    assert facts.accelerators[0].health.power_cap_w in (150, 250)
