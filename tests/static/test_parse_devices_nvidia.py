"""`nvidia-smi` in its forms, and tools of other makers that wear its face."""

from __future__ import annotations

import pytest
from device_samples import disagreements, read, sample
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_adapter.hostfacts.device_facts import DeviceProcess, Driver

pytestmark = pytest.mark.static

MIB = 1 << 20
HEAD = """\
| NVIDIA-SMI {smi}             Driver Version: {driver}       CUDA Version: 12.2     |
|-----------------------------------------+----------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |         Memory-Usage | GPU-Util  Compute M. |
|=========================================+======================+======================|
"""
ROW = """\
|   {index}  {name:<25} Off | 00000000:{bus:02X}:00.0 Off |                    0 |
| 30%   {celsius}C    P2  {watts}W / 300W | {used:6}MiB / {total:5}MiB | {load:6}%      Default |
|                                         |                      |                  N/A |
+-----------------------------------------+----------------------+----------------------+
"""


def report(name: str):
    return read("nvidia_smi", sample(f"reports/nvidia-smi/{name}"))


def versions(facts) -> dict[str, str]:
    return {driver.component: driver.version for driver in facts.drivers}


def test_under_wsl_the_windows_driver_counts():
    facts = report("02-wsl-smi-535-driver-537.txt")
    assert versions(facts) == {"windows": "537.42", "nvidia-smi": "535.104.12", "cuda": "12.2"}
    (device,) = facts.accelerators
    assert (device.vendor, device.index, device.bdf) == ("cuda", 0, "0000:2d:00.0")
    assert device.name == "NVIDIA RTX A4000"
    assert device.memory_total_bytes == 15352 * MIB
    assert device.memory_used_bytes == 1323 * MIB
    assert (device.health.temperature_c, device.health.power_w) == (36, 11)
    assert (device.health.power_cap_w, device.health.utilization_percent) == (140, 1)
    assert device.health.errors == ()


def test_a_container_with_another_tool_is_no_windows():
    text = HEAD.format(smi="570.86.15", driver="550.90.07") + ROW.format(
        index=0, name="NVIDIA L4", bus=3, celsius=30, watts=20, used=1, total=23034, load=0
    )
    assert versions(read("nvidia_smi", text))["nvidia"] == "550.90.07"


def test_a_head_whose_box_was_not_closed():
    facts = report("04-driver-470-cuda-11.4-header.txt")
    assert versions(facts) == {"nvidia": "470.86", "nvidia-smi": "470.86", "cuda": "11.4"}
    assert facts.accelerators == ()


def test_before_2019_there_is_no_cuda_version():
    facts = report("05-pre-2019-header-without-cuda-version.txt")
    assert versions(facts) == {"nvidia": "387.26", "nvidia-smi": "387.26"}
    assert [(one.name, one.bdf) for one in facts.accelerators] == [
        ("TITAN Xp", "0000:02:00.0"),
        ("TITAN Xp", "0000:03:00.0"),
    ]


def test_a_mismatch_names_the_library():
    assert versions(report("06-nvml-mismatch-with-library-line.txt")) == {"nvml": "550.144"}


@pytest.mark.parametrize("text", ["No devices were found\n", "Driver Version: 0\n", "GPU 0\n"])
def test_no_device_is_made_up(text):
    assert read("nvidia_smi", text).accelerators == ()


def test_mig_instances_are_devices_of_their_own():
    facts = read("nvidia_smi", sample("tool_outputs/nvidia-smi-mig.txt"))
    told = [(one.index, one.die, one.partition) for one in facts.accelerators]
    assert told == [(0, None, "MIG"), (0, 0, "3g.20gb"), (0, 1, "3g.20gb"), (1, None, None)]
    first = facts.accelerators[1]
    assert (first.uuid or "").startswith("MIG-c7384736")
    assert first.memory_total_bytes == 19968 * MIB
    busy = facts.accelerators[3]
    assert busy.processes == (DeviceProcess(9241, "VLLM::EngineCore", 38990 * MIB),)
    assert busy.health.temperature_c is None
    assert [error[:20] for error in busy.health.errors] == [
        "the tool prints an e",
        "2 uncorrectable memo",
    ]


def test_a_lost_device_keeps_its_address():
    text = "Unable to determine the device handle for GPU3: 0000:89:00.0: Unknown Error\n"
    (device,) = read("nvidia_smi", text).accelerators
    assert (device.index, device.bdf) == (3, "0000:89:00.0")
    assert "Unknown Error" in device.health.errors[0]
    old = "Unable to determine the device handle for GPU 0000:89:00.0: GPU is lost.\n"
    assert read("nvidia_smi", old).accelerators == ()  # it says no number


@pytest.mark.parametrize(
    ("path", "vendor", "name"),
    [
        ("ppu-smi.txt", "thead", "PPU-ZW810E"),
        ("ixsmi.txt", "iluvatar", "Iluvatar BI-V150"),
        ("kunlunxin-xpu-smi.txt", "kunlunxin", "P800 OAM"),
    ],
)
def test_a_face_is_not_a_maker(path, vendor, name):
    facts = read("vendor_tables", sample(f"tool_outputs/{path}"))
    assert {(device.vendor, device.name) for device in facts.accelerators} == {(vendor, name)}
    assert "nvidia" not in versions(facts)


def test_nvidia_smi_that_lists_a_ppu():
    text = "GPU 0: PPU-ZW810E (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)\n"
    assert read("nvidia_smi", text).accelerators[0].vendor == "thead"


def test_a_device_that_the_driver_lost():
    rows = (
        "|   0  ERR!                Off  | 00000000:03:00.0 Off |                 ERR! |\n"
        "|ERR!  ERR! ERR!    N/A / ERR!  |   2MiB / 11178MiB    | GPU is lost          |\n"
    )
    (device,) = read("nvidia_smi", HEAD.format(smi="470.86", driver="470.86") + rows).accelerators
    assert (device.name, device.bdf) == (None, "0000:03:00.0")
    assert device.health.errors == ("the tool says that the GPU is lost",)


def test_csv_with_units_in_header_and_cells():
    facts = read("nvidia_smi", sample("tool_outputs/nvidia-smi-query.csv.txt"))
    first, second = facts.accelerators
    assert (first.arch, first.memory_total_bytes) == ("sm_89", 23034 * MIB)
    assert (second.bdf, second.health.temperature_c) == ("0000:00:04.0", 38)


def test_log_of_2018_and_xml_of_a_fermi():
    old = read("nvidia_smi_q", sample("reports/numa-sysfs/05-nvidia-smi-q-log-960m.txt"))
    assert versions(old) == {"nvidia": "410.72", "cuda": "10.0"}
    assert old.accelerators[0].name == "GeForce GTX 960M"
    fermi = read(
        "nvidia_smi_q", sample("reports/numa-sysfs/04-nvidia-smi-xml-driver-390-fermi.txt")
    )
    assert versions(fermi) == {"nvidia": "390.157"}
    assert (fermi.accelerators[0].name, fermi.accelerators[0].arch) == ("GeForce 410M", None)


def test_a_log_of_one_of_eight_devices():
    (device,) = read("nvidia_smi_q", sample("tool_outputs/nvidia-smi-q.txt")).accelerators
    health = device.health
    assert (device.index, device.bdf) == (3, "0000:5d:00.0")
    assert device.memory_total_bytes == 81559 * MIB
    assert health.throttle_reasons == ("sw_power_cap",)
    assert (health.power_w, health.power_cap_w, health.clock_max_mhz) == (699.12, 700, 1980)
    assert health.errors == ("4 uncorrectable memory errors (dram uncorrectable)",)
    assert device.processes == (DeviceProcess(4242, "python3", 69990 * MIB),)


def test_an_instances_memory_is_not_its_gpus():
    text = (
        "==============NVSMI LOG==============\nAttached GPUs : 1\nGPU 00000000:07:00.0\n"
        "    Product Name : NVIDIA A100-SXM4-40GB\n    MIG Device\n        Index : 0\n"
        "        FB Memory Usage\n            Total : 19968 MiB\n    FB Memory Usage\n"
        "        Total : 40960 MiB\n"
    )
    (device,) = read("nvidia_smi_q", text).accelerators
    assert (device.partition, device.memory_total_bytes) == ("MIG", None)


def test_xml_tells_what_the_text_does():
    text = """\
<?xml version="1.0" ?>
<nvidia_smi_log>
    <driver_version>535.129.03</driver_version>
    <cuda_version>12.2</cuda_version>
    <attached_gpus>1</attached_gpus>
    <gpu id="00000000:3B:00.0">
        <product_name>Tesla T4</product_name>
        <uuid>GPU-11111111-2222-3333-4444-555555555555</uuid>
        <minor_number>0</minor_number>
        <fb_memory_usage>
            <total>15360 MiB</total>
            <used>2 MiB</used>
        </fb_memory_usage>
        <temperature>
            <gpu_temp>41 C</gpu_temp>
        </temperature>
        <processes>
            <process_info>
                <pid>77</pid>
                <process_name>python</process_name>
                <used_memory>1 MiB</used_memory>
            </process_info>
        </processes>
    </gpu>
</nvidia_smi_log>
"""
    facts = read("nvidia_smi_q", text)
    (device,) = facts.accelerators
    assert versions(facts) == {"nvidia": "535.129.03", "cuda": "12.2"}
    assert (device.memory_total_bytes, device.health.temperature_c) == (15360 * MIB, 41)
    assert device.processes == (DeviceProcess(77, "python", MIB),)
    assert Driver("nvidia", "535.129.03", "nvidia-smi -q") in facts.drivers


names = st.sampled_from(
    ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM...", "Tesla T4", "Quadro RTX 8000", "NVIDIA L40S"]
)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "name": names,
            "celsius": st.integers(10, 99),
            "watts": st.integers(0, 999),
            "total": st.integers(1000, 99999),
            "load": st.integers(0, 100),
        }
    ),
    min_size=1,
    max_size=16,
)


@given(rows, st.integers(0, 6000), st.booleans())
@settings(max_examples=examples(60))
def test_tables_of_one_to_sixteen_devices(devices, end, blanks_lost):
    text = HEAD.format(smi="535.129.03", driver="535.129.03")
    for index, device in enumerate(devices):
        text += ROW.format(index=index, bus=index + 1, used=device["total"] // 2, **device)
    if blanks_lost:
        text = "\n".join(" ".join(line.split()) for line in text.splitlines()) + "\n"
    found = read("nvidia_smi", text)
    assert [
        (one.index, one.name, one.bdf, one.memory_total_bytes, one.memory_used_bytes)
        for one in found.accelerators
    ] == [
        (
            index,
            one["name"],
            f"0000:{index + 1:02x}:00.0",
            one["total"] * MIB,
            one["total"] // 2 * MIB,
        )
        for index, one in enumerate(devices)
    ]
    assert [one.health.utilization_percent for one in found.accelerators] == [
        one["load"] for one in devices
    ]
    assert not disagreements(read("nvidia_smi", text[:end]), found)


@pytest.mark.parametrize(
    ("rows", "name", "bdf"),
    [
        (
            "|   0  Orin (nvgpu)                  N/A  | N/A              N/A |        N/A |\n"
            "| N/A   N/A  N/A               N/A /  N/A | Not Supported        |        N/A |\n",
            "Orin (nvgpu)",
            None,
        ),
        (
            "|   0  NVIDIA GB10                    On  |   0000000F:01:00.0 Off |    N/A |\n"
            "| N/A   37C    P8              4W /  N/A  | Not Supported    |      7% Default |\n",
            "NVIDIA GB10",
            "000f:01:00.0",
        ),
        (
            "|   0  NVIDIA GeForce RTX 3080      WDDM  |   00000000:2B:00.0  On |    N/A |\n",
            "NVIDIA GeForce RTX 3080",
            "0000:2b:00.0",
        ),
    ],
)
def test_devices_without_bus_or_memory_of_their_own(rows, name, bdf):
    head = HEAD.format(smi="540.3.0", driver="N/A")
    facts = read("nvidia_smi", head + rows)
    (device,) = facts.accelerators
    assert (device.name, device.bdf, device.memory_total_bytes) == (name, bdf, None)
    assert versions(facts) == {"nvidia-smi": "540.3.0", "cuda": "12.2"}
