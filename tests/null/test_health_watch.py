"""The watch over a running server: tools and a driver library that change over time.

The tools are shell scripts that give the next of several answers at each call; the library is a
stand-in for its binding.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from vllm_adapter.hostfacts.device_facts import DeviceProcess, Health
from vllm_adapter.hostfacts.facts import Accelerator
from vllm_adapter_doctor.devices.box_device import Device
from vllm_adapter_doctor.live.health import HealthReading, read_health
from vllm_adapter_doctor.live.readers import VendorReader
from vllm_adapter_doctor.serving.health import DevicesInUse
from vllm_adapter_doctor.serving.monitor import HealthMonitor, Watcher

pytestmark = pytest.mark.null

DATA = Path(__file__).parents[1] / "data"
GIB = 1 << 30


@pytest.fixture
def path(tmp_path, monkeypatch):
    """The folder of tools; nothing else is on PATH, and no adapter brings a reader."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("vllm_adapter_doctor.live.health.find_readers", lambda: ({}, []))
    return folder


def script(file, *lines):
    file.write_text("\n".join(("#!/bin/sh", "PATH=/usr/bin:/bin", *lines, "")))
    file.chmod(0o755)


def tool(folder, name, *answers, exit_codes=()):
    """A tool that gives its answers one after the other, and then the last one for ever."""
    for number, text in enumerate(answers):
        (folder / f"{name}.{number}").write_text(text)
        code = exit_codes[number] if number < len(exit_codes) else 0
        (folder / f"{name}.{number}.code").write_text(str(code))
    script(
        folder / name,
        f"cd {folder}",
        f"n=$(cat {name}.n 2>/dev/null || echo 0)",
        f"[ -e {name}.$((n + 1)) ] && echo $((n + 1)) > {name}.n",
        f"cat {name}.$n",
        f"exit $(cat {name}.$n.code)",
    )


XML = """<?xml version="1.0" ?>
<nvidia_smi_log>
<driver_version>580.95.05</driver_version>
<attached_gpus>1</attached_gpus>
<gpu id="00000000:3B:00.0">
<product_name>NVIDIA H200</product_name>
<uuid>GPU-aaaa</uuid>
<fb_memory_usage>
<total>143771 MiB</total>
<used>4 MiB</used>
</fb_memory_usage>
<clocks_event_reasons>
<clocks_event_reason_hw_thermal_slowdown>{hot}</clocks_event_reason_hw_thermal_slowdown>
</clocks_event_reasons>
<temperature>
<gpu_temp>{celsius} C</gpu_temp>
</temperature>
<gpu_power_readings>
<power_draw>{watt} W</power_draw>
<current_power_limit>700.00 W</current_power_limit>
</gpu_power_readings>
</gpu>
</nvidia_smi_log>
"""
COOL = XML.format(hot="Not Active", celsius=45, watt=410)
HOT = XML.format(hot="Active", celsius=92, watt=350)
LOST = (
    "Unable to determine the device handle for GPU0: 0000:3B:00.0: GPU is lost.  "
    "Reboot the system to recover this GPU\n"
)


def watched(reading, certain=True, own=frozenset()):
    devices = tuple(
        Device(one.vendor, one.index, bdf=one.bdf, uuid=one.uuid, reported=one)
        for one in reading.accelerators
    )
    return HealthMonitor(DevicesInUse(devices, certain), lambda: set(own))


def test_throttled_is_said_when_it_begins_and_when_it_ends_and_lost_ends_the_server(path):
    answers = [COOL, COOL, HOT, HOT, HOT, COOL, HOT, COOL, COOL, COOL, LOST]
    tool(path, "nvidia-smi", *answers, exit_codes=[0] * 10 + [15])
    watch = watched(read_health("cuda"))
    said, ends = [], []
    for _ in range(len(answers)):
        new, lost = watch.observe(read_health("cuda"))
        said += new
        ends.append(lost)
    assert said == [
        "cuda device 0 (0000:3b:00.0) is held down by hw_thermal_slowdown "
        "(hw_thermal_slowdown; 92 C, 350 of 700 W) [VA1702]",
        "cuda:0 (0000:3b:00.0) is no longer throttled: 45 C, 410 of 700 W [VA1702]",
    ]
    assert ends[:-1] == [None] * 10
    assert ends[-1].startswith("cuda device 0 (0000:3b:00.0): the kernel driver lost it")
    assert ends[-1].endswith("[VA1701]")


def test_a_lost_device_of_which_nobody_knows_the_use_is_told_once(path):
    tool(path, "nvidia-smi", COOL, LOST)
    watch = watched(read_health("cuda"), certain=False)
    assert watch.observe(read_health("cuda")) == ([], None)
    assert watch.suspicious
    new, lost = watch.observe(read_health("cuda"))
    assert lost is None
    assert not watch.suspicious
    assert "[VA1701]; it is not known whether the server uses it" in new[0]
    assert watch.observe(read_health("cuda")) == ([], None)


NPUS = (DATA / "reports/ascend/04-npu-smi-8x910b3.txt").read_text()


def test_another_vendor_s_tool(path):
    """An NPU that its tool calls alarmed is said and let be; one that it lists no more is lost."""
    alarmed = NPUS.replace(
        "| 3     910B3               | OK ", "| 3     910B3               | Alarm "
    )
    assert alarmed != NPUS
    lines = NPUS.splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if "| 3     910B3" in line)
    without = "".join(lines[:at] + lines[at + 2 :])
    tool(path, "npu-smi", NPUS, alarmed, NPUS, NPUS, without)
    watch = watched(read_health("ascend"))
    assert len(watch.used.devices) == 8
    new, lost = watch.observe(read_health("ascend"))
    assert lost is None and "[VA1704]" in new[0]
    assert watch.observe(read_health("ascend")) == ([], None)
    new, _ = watch.observe(read_health("ascend"))
    assert "ascend:3" in new[0] and "is healthy again" in new[0]
    seen = [watch.observe(read_health("ascend")) for _ in range(3)]
    assert seen[:2] == [([], None)] * 2
    assert seen[2][1].startswith("ascend:3") and seen[2][1].endswith("[VA1701]")


def test_a_tool_that_lists_nothing_proves_nothing(path):
    tool(path, "npu-smi", NPUS, "dcmi module initialize failed\n", exit_codes=[0, 255])
    watch = watched(read_health("ascend"))
    seen = [watch.observe(read_health("ascend")) for _ in range(5)]
    assert [lost for _, lost in seen] == [None] * 5
    assert [len(new) for new, _ in seen] == [1, 0, 0, 0, 0]
    assert "cannot be read: npu-smi info ended with exit code 255" in seen[0][0][0]


def test_amd_s_metrics(path):
    block = "GPU: 0\n    POWER:\n        SOCKET_POWER: 750 W\n    THROTTLE:\n        {0}: {1}\n"
    cool = block.format("SOCKET_THERMAL_VIOLATION_STATUS", "NOT ACTIVE")
    hot = block.format("SOCKET_THERMAL_VIOLATION_STATUS", "ACTIVE")
    (path / "cool").write_text(cool)
    (path / "hot").write_text(hot)
    script(path / "amd-smi", f'[ "$1" = metric ] && cat {path}/now; exit 0')
    shutil.copy(path / "cool", path / "now")
    watch = watched(read_health("rocm"))
    shutil.copy(path / "hot", path / "now")
    new, lost = watch.observe(read_health("rocm"))
    assert lost is None
    assert new == ["rocm device 0 is held down by socket thermal (socket thermal; 750 W) [VA1702]"]


def reading(*processes, used=90 * GIB):
    one = Accelerator(
        "cuda",
        0,
        "x",
        bdf="0000:3b:00.0",
        memory_total_bytes=140 * GIB,
        memory_used_bytes=used,
        processes=tuple(DeviceProcess(pid, "python", 40 * GIB) for pid in processes),
    )
    return HealthReading((one,), "x")


def test_a_stranger_on_the_device_is_told_from_the_server_itself():
    watch = watched(reading(), own={5, 6})
    assert watch.observe(reading(5, 6)) == ([], None)
    new, lost = watch.observe(reading(5, 6, 99))
    assert lost is None
    assert "is held by python (pid 99)" in new[0] and "[VA1703]" in new[0]
    assert watch.observe(reading(5, 6, 99)) == ([], None)
    assert watch.observe(reading(5, 6)) == ([], None)
    assert "is no longer held by another program" in watch.observe(reading(5))[0][0]


def test_process_ids_of_another_namespace_name_nobody():
    """A container sees the host's ids: none of them is the server's, and all may be."""
    watch = watched(reading(), own={5, 6})
    assert watch.observe(reading(70005, 70006)) == ([], None)


def test_one_bad_reading_ends_no_server():
    lost = replace(reading().accelerators[0], health=Health(errors=("the GPU is lost",)))
    watch = watched(reading())
    for _ in range(3):
        assert watch.observe(HealthReading((lost,), "x")) == ([], None)
        assert watch.suspicious
        assert watch.observe(reading()) == ([], None)


def test_a_tool_that_hangs_is_told_once_and_asked_less_often():
    readings, said, times = [], [], []
    hang = HealthReading(fault="nvidia-smi gave no answer within 5 s and was ended", hangs=True)
    readings = [hang, hang, hang, reading(), reading()]
    watcher = Watcher(
        watched(reading()),
        lambda: readings.pop(0),
        say=said.append,
        lost=said.append,
        interval_s=10,
    )

    def wait(seconds):
        times.append(seconds)
        return not readings

    watcher._stopped.wait = wait
    watcher.run()
    assert times == [10, 20, 40, 80, 10, 10]
    assert len(said) == 2
    assert "gave no answer within 5 s" in said[0] and "can be read again" in said[1]


def test_a_hanging_tool_is_ended(path):
    script(path / "hl-smi", f"echo $$ > {path}/pid", "exec sleep 60")
    found = read_health("gaudi", timeout_s=0.5)
    assert (found.accelerators, found.hangs) == ((), True)
    assert found.fault == "hl-smi gave no answer within 0.5 s and was ended"


def test_no_tool_at_all(path):
    found = read_health("rocm")
    assert found.fault == "amd-smi: not on PATH; rocm-smi: not on PATH"
    assert not found.hangs


BINDINGS = Path(__file__).parents[1] / "bindings"
WORDS = ("", "hot", "lost-late", "lost", "ecc", "untold", "not-ours", "unknown", "mig", "init-18")


@pytest.fixture
def nvml(tmp_path, monkeypatch):
    """A function that asks the cuda adapter's reader, beside a stand-in for NVIDIA's binding."""
    reader = VendorReader("cuda", "vllm_adapter_cuda.health", "vllm-adapter-cuda")
    monkeypatch.setattr(
        "vllm_adapter_doctor.live.health.find_readers", lambda: ({"cuda": reader}, [])
    )
    monkeypatch.syspath_prepend(str(BINDINGS))

    def ask(mode, **limits):
        file = tmp_path / "mode"
        file.write_text(WORDS[mode] if isinstance(mode, int) else mode)
        return read_health("cuda", environ={"FAKE_NVML": str(file), "PATH": ""}, **limits)

    return ask


def test_the_driver_s_library_is_asked_first(nvml):
    found = nvml(1)
    first, second = found.accelerators
    assert found.asked == first.source == "libnvidia-ml.so.1"
    assert (first.bdf, first.uuid, first.name) == ("0000:3c:00.0", "GPU-1", "NVIDIA H200")
    assert second.bdf == "0000:3d:00.0"
    assert first.health == Health(
        temperature_c=92,
        power_w=350.5,
        power_cap_w=700.0,
        clock_mhz=900,
        clock_max_mhz=1980,
        throttle_reasons=("hw_slowdown", "hw_thermal_slowdown"),
    )
    assert first.processes == (DeviceProcess(4711, None, 80 * GIB),)
    assert nvml(0).accelerators[0].health.throttle_reasons == ()
    assert nvml(5).accelerators[0].processes == (DeviceProcess(4711, None, None),)


def test_what_the_library_says_is_judged(nvml):
    watch = watched(nvml(0))
    assert watch.observe(nvml(0)) == ([], None)
    new, lost = watch.observe(nvml(1))
    assert lost is None
    assert [one[-8:] for one in new] == ["[VA1702]"] * 2
    assert "92 C, 350.5 of 700 W, 900 of 1980 MHz" in new[0]
    new, lost = watched(nvml(0)).observe(nvml(4))
    assert lost is None and "3 uncorrectable memory errors" in new[0] and "[VA1707]" in new[0]


@pytest.mark.parametrize(("mode", "index"), [(2, 0), (3, 1)])
def test_a_gpu_is_lost_by_any_call_s_answer(nvml, mode, index):
    """NVML_ERROR_GPU_IS_LOST of the handle itself tells no bus address, only the number."""
    watch = watched(nvml(0))
    assert watch.observe(nvml(mode)) == ([], None)
    _, lost = watch.observe(nvml(mode))
    assert lost.startswith(f"cuda device {index}") and lost.endswith("[VA1701]")


def test_what_is_not_ours_or_split_or_unknown(nvml):
    assert [one.index for one in nvml(6).accelerators] == [0]
    split = nvml(8).accelerators
    assert [one.partition for one in split] == ["MIG", "1g.18gb", "2g.35gb", "MIG"]
    assert [(one.index, one.die, one.uuid) for one in split[1:3]] == [
        (0, 0, "MIG-10"),
        (0, 1, "MIG-11"),
    ]
    assert {(one.bdf, one.name, one.compute_units) for one in split[1:3]} == {
        (None, "NVIDIA H200", 16)
    }
    assert [one.partition for one in nvml(0).accelerators] == [None] * 2
    unknown = nvml(7).accelerators[1].health.errors
    assert unknown == (
        "the driver cannot read this device (unknown error, nvmlDeviceGetHandleByIndex_v2)",
    )


def test_a_library_that_cannot_start_says_its_code(nvml):
    assert nvml(9).fault == ("libnvidia-ml.so.1: nvmlInit_v2 gave 18; nvidia-smi: not on PATH")


def test_every_process_is_told(nvml):
    """More than any buffer of ours once held."""
    assert len(nvml("crowded").accelerators[0].processes) == 100


@pytest.mark.parametrize(
    ("words", "fault", "hangs"),
    [
        ("crash", "vllm_adapter_cuda.health: was killed by SIGABRT", False),
        ("hang", "vllm_adapter_cuda.health: gave no answer within 2 s and was ended", True),
        ("no-library", "libnvidia-ml.so.1: no such library", False),
        ("no-count", "libnvidia-ml.so.1: nvmlDeviceGetCount_v2 gave 999", False),
    ],
)
def test_a_reader_that_fails_costs_itself_alone(nvml, words, fault, hangs):
    found = nvml(words, timeout_s=2.0)
    assert (found.accelerators, found.hangs) == ((), hangs)
    assert found.fault == (fault if hangs else f"{fault}; nvidia-smi: not on PATH")
