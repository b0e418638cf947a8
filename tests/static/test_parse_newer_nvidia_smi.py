"""Layouts of other releases of nvidia-smi; each text is made up, each form real."""

from __future__ import annotations

import pytest
from parsed import versions

from vllm_adapter_doctor.devices.inventory import inventory
from vllm_adapter_doctor.report.read import parse_report

pytestmark = pytest.mark.static

KMD_TABLE = """\
+---------------------------------------------------------------------------------------+
| NVIDIA-SMI 612.10.01           KMD Version: 612.10.01     CUDA UMD Version: 13.4      |
+-----------------------------------------+----------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |         Memory-Usage | GPU-Util  Compute M. |
|=========================================+======================+======================|
|   0  NVIDIA L4                      On  | 00000000:17:00.0 Off |                    0 |
| N/A   35C    P8              11W /  72W |      1MiB / 23034MiB |      0%      Default |
+-----------------------------------------+----------------------+----------------------+
"""
KMD_LOG = """\
==============NVSMI LOG==============

Driver Version                        : 612.10.01 [Deprecated; gone in CUDA 14. Use KMD Version]
CUDA Version                          : 13.4 [Deprecated; gone in CUDA 14. Use CUDA UMD Version]
KMD Version                           : 612.10.01
CUDA UMD Version                      : 13.4

Attached GPUs                         : 1
GPU 00000000:17:00.0
    Product Name                      : NVIDIA L4
"""
KMD_ASKED = """\
NVIDIA-SMI version  : 612.10.01
NVML version        : 612.10
DRIVER version      : Deprecated, see "KMD version" instead
CUDA version        : Deprecated, see "CUDA UMD version" instead
KMD version         : 612.10.01
CUDA UMD version    : 13.4
"""
OLDER_ASKED = """\
NVIDIA-SMI version  : 565.10.05
NVML version        : 565.10
DRIVER version      : 566.20
CUDA Version        : 12.7
"""


@pytest.mark.parametrize("text", [KMD_TABLE, KMD_LOG, KMD_ASKED])
def test_the_kernel_driver_has_a_new_name_since_610(text: str) -> None:
    found = versions(parse_report(text))
    assert found["nvidia"] == "612.10.01"
    assert found["cuda"] == "13.4"


def test_version_command_under_wsl_tells_the_windows_driver() -> None:
    assert versions(parse_report(OLDER_ASKED)) == {
        "windows": "566.20",
        "nvidia-smi": "565.10.05",
        "cuda": "12.7",
    }


def test_a_cut_version_is_not_taken() -> None:
    assert "cuda" not in versions(parse_report(OLDER_ASKED.rstrip()))


MIG_XML = """\
<nvidia_smi_log>
	<driver_version>560.35.03</driver_version>
	<attached_gpus>1</attached_gpus>
	<gpu id="00000000:4F:00.0">
		<product_name>NVIDIA A30</product_name>
		<mig_mode>
			<current_mig>Enabled</current_mig>
		</mig_mode>
		<mig_devices>
			<mig_device>
				<index>0</index>
				<gpu_instance_id>1</gpu_instance_id>
				<compute_instance_id>0</compute_instance_id>
				<device_attributes>
					<shared>
						<multiprocessor_count>28</multiprocessor_count>
					</shared>
				</device_attributes>
				<ecc_error_count>
					<volatile_count>
						<sram_uncorrectable>0</sram_uncorrectable>
					</volatile_count>
				</ecc_error_count>
				<fb_memory_usage>
					<total>11968 MiB</total>
					<used>6 MiB</used>
				</fb_memory_usage>
			</mig_device>
			<mig_device>
				<index>1</index>
				<gpu_instance_id>5</gpu_instance_id>
				<compute_instance_id>0</compute_instance_id>
				<device_attributes>
					<shared>
						<multiprocessor_count>14</multiprocessor_count>
					</shared>
				</device_attributes>
				<fb_memory_usage>
					<total>5952 MiB</total>
					<used>3 MiB</used>
				</fb_memory_usage>
			</mig_device>
		</mig_devices>
		<accounting_mode>Disabled</accounting_mode>
		<uuid>GPU-00000000-0000-0000-0000-00000000000a</uuid>
		<minor_number>0</minor_number>
		<fb_memory_usage>
			<total>24576 MiB</total>
			<used>12 MiB</used>
		</fb_memory_usage>
	</gpu>
</nvidia_smi_log>
"""
MIG_LIST = """\
GPU 0: NVIDIA A30 (UUID: GPU-00000000-0000-0000-0000-00000000000a)
  MIG 2g.12gb     Device  0: (UUID: MIG-00000000-0000-0000-0000-00000000000b)
  MIG 1g.6gb      Device  1: (UUID: MIG-00000000-0000-0000-0000-00000000000c)
"""


def test_mig_devices_of_a_log() -> None:
    facts = parse_report(MIG_XML)
    gpu, *instances = facts.accelerators
    assert (gpu.partition, gpu.memory_total_bytes) == ("MIG", 24576 << 20)
    assert [(one.die, one.partition, one.compute_units) for one in instances] == [
        (0, "GI 1 CI 0", 28),
        (1, "GI 5 CI 0", 14),
    ]
    assert [one.memory_total_bytes for one in instances] == [11968 << 20, 5952 << 20]
    assert len(inventory(facts).devices) == 2


def test_mig_devices_of_a_log_and_a_list_are_the_same_ones() -> None:
    instances = parse_report(MIG_XML + MIG_LIST).accelerators[1:]
    assert [one.partition for one in instances] == ["2g.12gb", "1g.6gb"]
    assert [one.memory_total_bytes for one in instances] == [11968 << 20, 5952 << 20]
    assert all(one.uuid for one in instances)


@pytest.mark.parametrize("lines", range(10, 40))
def test_a_cut_log_gives_no_instance_a_wrong_size(lines: int) -> None:
    cut = "\n".join(MIG_XML.splitlines()[:lines])
    sizes = {None, 24576 << 20, 11968 << 20, 5952 << 20}
    found = parse_report(cut).accelerators
    assert {one.memory_total_bytes for one in found} <= sizes
    assert all(
        one.memory_total_bytes in (None, 24576 << 20) for one in found if one.partition == "MIG"
    )


NO_HEADER = """\
$ nvidia-smi --query-gpu=index,name,memory.total,driver_version --format=csv,noheader,nounits
0, NVIDIA H20, 97871, 570.10.01
1, NVIDIA H20, 97871, 570.10.01
$
"""
NO_INDEX = """\
name, driver_version, memory.total [MiB]
NVIDIA H20, 570.10.01, 97871 MiB
NVIDIA H20, 570.10.01, 97871 MiB
"""
ONE_ALONE = "$ nvidia-smi -i 5 --query-gpu=name,driver_version,memory.total --format=csv\n"


@pytest.mark.parametrize("text", [NO_HEADER, NO_INDEX])
def test_tables_of_a_query_without_header_or_numbers(text: str) -> None:
    facts = parse_report(text)
    assert [(one.index, one.name) for one in facts.accelerators] == [
        (0, "NVIDIA H20"),
        (1, "NVIDIA H20"),
    ]
    assert {one.memory_total_bytes for one in facts.accelerators} == {97871 << 20}
    assert versions(facts)["nvidia"] == "570.10.01"


def test_one_device_of_a_query_has_no_number() -> None:
    assert not parse_report(ONE_ALONE + NO_INDEX).accelerators


@pytest.mark.parametrize("between", [" ", ", ", "\t"])
def test_a_list_that_a_page_has_joined_to_one_line(between):
    uuid = "3f1c86d2-90ab-47e5-8d3c-6b2e5a917f0{n}"
    gpus = [f"GPU {n}: NVIDIA L40S (UUID: GPU-{uuid.format(n=n)})" for n in range(3)]
    one = "MIG 1g.10gb     Device  0: (UUID: MIG-5d0e7c2a-1b94-5f36-a8c7-2e9d4b60f713)"
    found = parse_report(between.join(gpus)).accelerators
    assert [each.name for each in found] == ["NVIDIA L40S"] * 3
    assert len({each.uuid for each in found}) == 3
    mig = parse_report(between.join([gpus[0], one])).accelerators
    assert mig[-1].partition == "1g.10gb"


def test_a_lost_device_that_an_older_tool_writes_small():
    table = "GPU 0: NVIDIA A30 (UUID: GPU-7c0d5b1e-4f2a-49d8-b3c6-1e8f90a2d745)\n"
    lost = "Unable to determine the device handle for gpu1: 0000:5E:00.0: Unknown Error\n"
    first, second = parse_report(table + lost).accelerators
    assert not first.health.errors
    assert second.bdf == "0000:5e:00.0" and "Unknown Error" in second.health.errors[0]


def test_a_tool_before_wsl_had_another_number_than_its_driver():
    text = (
        "+------------------------------------------------------+\n"
        "| NVIDIA-SMI 4.331.49   Driver Version: 331.49         |\n"
        "|-------------------------------+----------------------+----------------------+\n"
        "| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |\n"
        "| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |\n"
        "|===============================+======================+======================|\n"
        "|   0  Tesla K40m          Off  | 0000:04:00.0     Off |                    0 |\n"
        "| N/A   29C    P8    20W / 235W |     23MB / 11519MB   |      0%      Default |\n"
        "+-------------------------------+----------------------+----------------------+\n"
    )
    facts = parse_report(text)
    assert ("nvidia", "331.49") in [(one.component, one.version) for one in facts.drivers]
    assert facts.accelerators[0].memory_total_bytes == 11519 << 20


QUERY_FABRIC = """\
==============NVSMI LOG==============

Driver Version                            : 580.126.09
CUDA Version                              : 13.0

Attached GPUs                             : 1
GPU 00000009:06:00.0
    Product Name                          : NVIDIA GB300
    GPU Power Readings
        Average Power Draw                : 301.50 W
        GPU Base Power
            Current Base Power            : 1200.00 W
        Current Power Limit               : 1300.00 W
    Fabric
        State                             : Completed
        Status                            : Success
        Health
            Summary                       : {summary}
            Bandwidth                     : {bandwidth}
            Route Unhealthy               : False
    Processes                             : None
"""


def test_the_fabric_that_a_query_says_is_unhealthy():
    well, ill = (
        parse_report(QUERY_FABRIC.format(summary=a, bandwidth=b)).accelerators[0].health
        for a, b in (("Healthy", "Full"), ("Unhealthy", "Degraded"))
    )
    assert not well.errors and well.power_cap_w == 1300.0
    assert [error.rsplit(" ", 1)[1] for error in ill.errors] == ["Unhealthy", "Degraded"]


@pytest.mark.parametrize("key", ["route_unhealthy", "remapped_row_failure"])
def test_what_is_broken_in_a_query_as_xml(key):
    section = {"route_unhealthy": "health", "remapped_row_failure": "remapped_rows"}[key]
    text = (
        '<?xml version="1.0" ?>\n<nvidia_smi_log>\n\t<attached_gpus>1</attached_gpus>\n'
        '\t<gpu id="00000000:19:00.0">\n\t\t<product_name>NVIDIA B300</product_name>\n'
        f"\t\t<fabric>\n\t\t\t<{section}>\n\t\t\t\t<{key}>{{}}</{key}>\n"
        f"\t\t\t</{section}>\n\t\t</fabric>\n\t</gpu>\n</nvidia_smi_log>\n"
    )
    bad, good = {"route_unhealthy": ("True", "False"), "remapped_row_failure": ("Yes", "No")}[key]
    assert len(parse_report(text.format(bad)).accelerators[0].health.errors) == 1
    assert not parse_report(text.format(good)).accelerators[0].health.errors
