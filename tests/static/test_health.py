"""Devices before they are opened: which ones, what is wrong with them, and the four policies."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from vllm_adapter.errors import DeviceUnhealthy
from vllm_adapter.hostfacts.device_facts import DeviceProcess, Driver, Health
from vllm_adapter.hostfacts.facts import Accelerator, HostFacts, TorchBuild
from vllm_adapter.hostfacts.known_vendors import VENDORS
from vllm_adapter.settings import Settings
from vllm_adapter_doctor.cli.serve_health import devices_used
from vllm_adapter_doctor.devices.manager import DeviceManager
from vllm_adapter_doctor.live.health import HealthReading, can_read, tools_of
from vllm_adapter_doctor.serving.before_start import Policy, StartRequest
from vllm_adapter_doctor.serving.health import family, findings, used

pytestmark = pytest.mark.static
GIB = 1 << 30
LOST = Health(errors=("the driver says that the GPU is lost (nvmlDeviceGetTemperature)",))
HOT = Health(
    temperature_c=91, power_w=300, power_cap_w=700, throttle_reasons=("hw_thermal_slowdown",)
)


def gpu(index, vendor="cuda", **values):
    return Accelerator(
        vendor,
        index,
        "nvidia-smi -q",
        name=values.pop("name", "NVIDIA H200"),
        bdf=f"0000:{index + 16:02x}:00.0",
        uuid=f"GPU-{index}aaa",
        memory_total_bytes=140 * GIB,
        memory_used_bytes=values.pop("used", 0),
        **values,
    )


def manager(accelerators, drivers=(), torch=None, **environment):
    facts = HostFacts(
        accelerators=tuple(accelerators),
        environment=tuple(sorted(environment.items())),
        drivers=drivers,
        torch=torch,
    )
    return DeviceManager(facts, Settings())


def ids(found):
    return [one.id for one in found.devices], found.certain


EIGHT = [gpu(n) for n in range(8)]


@pytest.mark.parametrize(
    ("environment", "count", "expected"),
    [
        ({}, 2, ([0, 1], True)),
        ({}, None, (list(range(8)), False)),
        ({"CUDA_VISIBLE_DEVICES": "5,2"}, 1, ([5], True)),
        ({"CUDA_VISIBLE_DEVICES": "5,2"}, 2, ([5, 2], True)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-3,GPU-1aaa"}, 1, ([3], True)),
        ({"CUDA_VISIBLE_DEVICES": "9"}, 1, ([], True)),
        ({"CUDA_VISIBLE_DEVICES": ""}, 1, ([], True)),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 1, ([], True)),
    ],
)
def test_which_devices_a_program_opens(environment, count, expected):
    places, certain = expected
    found = used(manager(EIGHT, **environment), "cuda", count)
    assert ids(found) == ([f"cuda:{n}" for n in places], certain)


def test_of_unlike_gpus_nobody_knows_which_is_the_first():
    unlike = [gpu(0), gpu(1, name="NVIDIA T400")]
    assert ids(used(manager(unlike), "cuda", 1)) == (["cuda:0", "cuda:1"], False)
    by_bus = manager(unlike, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert ids(used(by_bus, "cuda", 1)) == (["cuda:0"], True)
    assert ids(used(manager(unlike), "cuda", 2)) == (["cuda:0", "cuda:1"], True)


def test_gaudi_is_numbered_by_module():
    cards = [gpu(n, "gaudi") for n in range(2)]
    assert used(manager(cards), "gaudi", 1).certain is False
    told = [replace(one, logical=1 - one.index) for one in cards]
    assert ids(used(manager(told), "gaudi", 1)) == (["gaudi:0"], True)


def test_variables_that_filter_twice_leave_it_open():
    two = manager(
        [gpu(n, "rocm") for n in range(4)], ROCR_VISIBLE_DEVICES="1,2", HIP_VISIBLE_DEVICES="1"
    )
    assert used(two, "rocm", 1).certain is False


@pytest.mark.parametrize(
    ("health", "values", "idle", "codes"),
    [
        (Health(status="OK", temperature_c=40), {}, True, []),
        (LOST, {}, False, ["VA1701"]),
        (HOT, {}, False, ["VA1702"]),
        (Health(throttle_reasons=("gpu_idle",)), {}, True, []),
        (Health(), {"used": 20 * GIB}, True, ["VA1703"]),
        (Health(), {"used": 20 * GIB}, False, []),
        (Health(), {"used": 3 * GIB}, True, []),
        (Health(), {"used": 99 * GIB, "integrated": True}, True, []),
        (Health(errors=("2 uncorrectable memory errors",)), {}, False, ["VA1707"]),
        (Health(status="Alarm"), {}, False, ["VA1704"]),
    ],
)
def test_what_is_wrong_with_a_device(health, values, idle, codes):
    found = findings(gpu(0, health=health, **values), idle=idle)
    assert [one.code for one in found] == codes


def test_a_program_s_own_processes_hold_nothing():
    held = gpu(0, processes=(DeviceProcess(7, "python", 99 * GIB),))
    assert [one.code for one in findings(held)] == ["VA1703"]
    assert findings(held, own={7}) == []
    assert "python (pid 7)" in findings(held, idle=True)[0].cause


def test_a_family_of_processes():
    assert family(2, {3: 2, 4: 3, 5: 1, 2: 1, 1: 0}) == {2, 3, 4}


class Box:
    """A box with given readings, one a look; the last stays. Time passes in sleep alone."""

    def __init__(self, *readings, count=1, **environment):
        self.readings, self.said, self.now = list(readings), [], 0.0
        self.start = StartRequest(
            "cuda",
            count,
            lambda reading: manager(reading.accelerators, **environment),
            self.said.append,
            self.read,
            self.sleep,
            lambda: self.now,
        )

    def read(self, vendor):
        assert vendor == "cuda"
        found = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        return HealthReading(tuple(found), "x") if isinstance(found, list) else found

    def sleep(self, seconds):
        self.now += seconds


GOOD, BAD, WARM = [gpu(0), gpu(1)], [gpu(0, health=LOST), gpu(1)], [gpu(0, health=HOT), gpu(1)]


def test_devices_in_order_are_said_nothing_of():
    for policy in Policy:
        box = Box(GOOD)
        ready = box.start.prepare(policy)
        assert ids(ready.used) == (["cuda:0"], True)
        assert (ready.environment, box.said) == (None, [])


def test_warn_says_it_and_goes_on():
    box = Box(WARM)
    assert ids(box.start.prepare(Policy.WARN).used) == (["cuda:0"], True)
    (said,) = box.said
    assert said == (
        "cuda device 0 (0000:10:00.0) is held down by hw_thermal_slowdown "
        "(hw_thermal_slowdown; 91 C, 300 of 700 W) [VA1702]"
    )


@pytest.mark.parametrize(("seen", "code"), [(BAD, "VA1701"), (WARM, "VA1702")])
def test_fail_has_the_finding_s_code(seen, code):
    with pytest.raises(DeviceUnhealthy) as caught:
        Box(seen).start.prepare(Policy.FAIL)
    assert caught.value.code == code
    assert caught.value.hint
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.code) == (str(caught.value), code)


def test_a_lost_device_is_refused_under_warn_too():
    with pytest.raises(DeviceUnhealthy) as caught:
        Box(BAD).start.prepare(Policy.WARN)
    assert caught.value.code == "VA1701"


@pytest.mark.parametrize("count", [1, None])
@pytest.mark.parametrize("policy", [Policy.WARN, Policy.FAIL])
def test_what_devices_refuses_is_not_opened(policy, count):
    """A driver below the minimum of torch's CUDA, as `vllm-adapter devices` has it."""
    old = (Driver("nvidia", "535.183.06", "/proc/driver/nvidia/version"),)
    torch = TorchBuild("2.9.0+cu130", "cu130", cuda="13.0")
    box = Box(GOOD, count=count, drivers=old, torch=torch)
    with pytest.raises(DeviceUnhealthy, match="needs the driver 580") as caught:
        box.start.prepare(policy)
    assert caught.value.code == "VA1101" and "upgrade the driver" in caught.value.hint
    forward = (*old, Driver("cuda", "13.0", "nvidia-smi"))
    assert Box(GOOD, drivers=forward, torch=torch).start.prepare(policy).used.devices


@pytest.mark.parametrize("policy", Policy)
def test_an_alarmed_device_is_not_opened(policy):
    seen = [gpu(0, health=Health(status="Alarm"))]
    with pytest.raises(DeviceUnhealthy) as caught:
        Box(seen).start.prepare(policy, 5)
    assert caught.value.code == "VA1704"


def test_a_lost_device_that_is_not_opened_is_nobody_s_business():
    box = Box([gpu(0), gpu(1, health=LOST)])
    assert ids(box.start.prepare(Policy.FAIL).used) == (["cuda:0"], True)
    assert box.said == []


def test_wait_looks_again_less_and_less_often():
    box = Box(WARM, WARM, WARM, WARM, GOOD)
    assert ids(box.start.prepare(Policy.WAIT, 300).used) == (["cuda:0"], True)
    assert box.now == 1 + 2 + 4 + 8
    first, last = box.said
    assert first.startswith("waiting up to 300 s: cuda device 0")
    assert last == "healthy after 15 s"


def test_wait_ends_at_its_limit():
    box = Box(WARM)
    with pytest.raises(DeviceUnhealthy) as caught:
        box.start.prepare(Policy.WAIT, 100)
    assert (box.now, caught.value.code, len(box.said)) == (100, "VA1702", 1)


def test_other_takes_a_device_in_order():
    box = Box(BAD)
    ready = box.start.prepare(Policy.OTHER)
    assert ids(ready.used) == (["cuda:1"], True)
    assert dict(ready.environment.variables) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    assert "cuda:1 of cuda's devices taken" in box.said[0]
    assert "[VA1701]" in box.said[0]


@pytest.mark.parametrize(
    ("seen", "count", "environment"),
    [
        (BAD, 2, {}),
        (BAD, 1, {"CUDA_VISIBLE_DEVICES": "0"}),  # the others are not ours to take
        ([gpu(0, health=HOT), gpu(1, used=99 * GIB)], 1, {}),
        (BAD, None, {}),
    ],
)
def test_other_without_enough_devices_fails(seen, count, environment):
    with pytest.raises(DeviceUnhealthy):
        Box(seen, count=count, **environment).start.prepare(Policy.OTHER)


def test_other_takes_devices_of_one_kind():
    seen = [gpu(0, health=HOT), gpu(1), gpu(2, name="NVIDIA T400"), gpu(3)]
    box = Box(seen, count=2, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert ids(box.start.prepare(Policy.OTHER).used) == (["cuda:1", "cuda:3"], True)


def test_what_cannot_be_read_is_said_once():
    box = Box(HealthReading(fault="nvidia-smi: not on PATH"))
    ready = box.start.prepare(Policy.FAIL)
    assert (ready.used.devices, ready.unread) == ((), True)
    assert box.said == ["the health of cuda's devices cannot be read: nvidia-smi: not on PATH"]


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        ("", 1),
        ("--port 8000 --tensor-parallel-size 4", 4),
        ("-tp 4 -pp=2", 8),
        ("--tensor_parallel_size=2 -dp 2", 4),
        ("-dp 8 --data-parallel-size-local 2 -tp 2", 4),
        ("-tp four", None),
        ("-tp", None),
        ("--config run.yaml", None),
        ("--nnodes 2 -tp 16", None),
        ("--distributed-executor-backend=ray -tp 8", None),
    ],
)
def test_how_many_devices_the_flags_ask_for(flags, count):
    assert devices_used(flags.split()) == count


def test_each_reader_is_a_tool_that_we_know():
    for vendor in VENDORS:
        assert can_read(vendor) == bool(tools_of(vendor))
        assert all(tool.vendor == vendor and tool.health for tool in tools_of(vendor))
    assert [tool.program for tool in tools_of("rocm")] == ["amd-smi", "rocm-smi"]
    assert not can_read("thead")  # we read its table, and do not ask for it
