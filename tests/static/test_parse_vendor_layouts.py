"""Second layouts of other vendors' tools and logs; each text is made up, each form real."""

from __future__ import annotations

import pytest

from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_doctor.report.read import parse_report

pytestmark = pytest.mark.static


def versions(facts: HostFacts) -> dict[str, str]:
    return {one.component: one.version for one in facts.drivers}


CARDS = """\
================CNMON v5.10.40================
Card 0
    Product Name                   : MLU370-X8
    UUID                           : 11112222-3333-0000-0000-000000000000
    Driver                         : v5.10.40
    Health State                   :
        Device                     : Good
        Driver                     : Running
    Utilization                    :
        MLU Average                : 12 %
    Temperature                    :
        Board                      : 44 C
        Chip                       : 51 C
    Physical Memory Usage          :
        Total                      : 42396 MiB
        Used                       : 1200 MiB
    Power                          :
        Usage                      : 77 W
        Cap                        : 250 W
    PCI                            :
        Domain ID                  : 0000
        Bus num                    : 3b
        Device                     : 00
        Function                   : 0
Card 1
    Product Name                   : MLU370-X8
"""


def test_blocks_of_cnmon_info() -> None:
    facts = parse_report(CARDS)
    first, second = facts.accelerators
    assert (first.vendor, first.index, first.name) == ("mlu", 0, "MLU370-X8")
    assert first.bdf == "0000:3b:00.0"
    assert first.memory_total_bytes == 42396 << 20
    assert first.health.temperature_c == 51.0
    assert first.health.power_cap_w == 250.0
    assert (second.index, second.bdf, second.memory_total_bytes) == (1, None, None)
    assert versions(facts) == {"cambricon": "5.10.40"}


@pytest.mark.parametrize("length", range(40, len(CARDS), 7))
def test_cut_blocks_give_no_wrong_value(length: int) -> None:
    for one in parse_report(CARDS[:length]).accelerators:
        assert one.memory_total_bytes in (None, 42396 << 20)
        assert one.bdf in (None, "0000:3b:00.0")
        assert one.name in (None, "MLU370-X8")


SLOTS = """\
NPU ID  Slot ID  Chip ID  Chip Phy-ID  Chip Name
0       3        0        0            Ascend950DT
1       4        0        1            Ascend950DT
"""


def test_a_table_of_slots_has_one_chip_an_npu() -> None:
    found = parse_report(SLOTS).accelerators
    assert [(one.index, one.die, one.logical, one.arch) for one in found] == [
        (0, None, None, "950dt"),
        (1, None, None, "950dt"),
    ]


MARS = """\
| HT-SMI 2.3.2                       Kernel Mode Driver Version: 3.8.4            |
|------------------+-----------------+---------------------+----------------------|
| 0      Mars X301 | 0           Off | 0000:a1:00.0        | 0%          Disabled |
| 38W / 350W       | 44C          P0 | 858/65536 MiB       | Available            |
"""


def test_metax_under_another_name() -> None:
    facts = parse_report(MARS)
    (device,) = facts.accelerators
    assert (device.vendor, device.name, device.bdf) == ("metax", "Mars X301", "0000:a1:00.0")
    assert versions(facts) == {"metax": "3.8.4"}


JOURNAL = """\
habanalabs: loading driver, version: 1.21.0-1234abc
habanalabs 0000:4d:00.0: habanalabs device found [1da3:1060] (rev 1)
accel accel1: Successfully added device 0000:4d:00.0 to habanalabs driver
"""


def test_gaudi_as_an_accel_device_of_the_kernel() -> None:
    facts = parse_report(JOURNAL)
    (device,) = facts.accelerators
    assert (device.vendor, device.index, device.bdf) == ("gaudi", 1, "0000:4d:00.0")
    assert device.health.status is None
    assert versions(facts) == {"habanalabs": "1.21.0-1234abc"}


KUNLUN = """\
PyTorch version              : 2.5.1+cu118
XPU models and configuration :
XPU 0: P800 OAM (96.0GB)
XPU 1: P800 OAM (96.0GB)
Kunlun driver version        : 516.02
"""


def test_the_list_of_kunlunxin_s_plug_in() -> None:
    facts = parse_report(KUNLUN)
    assert [(one.vendor, one.index, one.name) for one in facts.accelerators] == [
        ("kunlunxin", 0, "P800 OAM"),
        ("kunlunxin", 1, "P800 OAM"),
    ]
    assert {one.memory_total_bytes for one in facts.accelerators} == {96 << 30}
    assert versions(facts) == {"kunlunxin": "516.02"}
