"""What the driver's user-space libraries are asked: by a library that is made of Python."""

from __future__ import annotations

import ctypes
import json

import pytest

from vllm_adapter_doctor.live import _driver_child
from vllm_adapter_doctor.report.parsers.nvidia_smi_q import parse
from vllm_adapter_doctor.report.text import clean

pytestmark = pytest.mark.static


class Library:
    """libnvidia-ml or libcuda with two devices, the second of which does not answer."""

    def __init__(self, name):
        if name == "libcuda.so.1":
            raise OSError("cannot open shared object file")

    def nvmlInit_v2(self):
        return 0

    def nvmlSystemGetDriverVersion(self, text, size):
        text.value = b"580.159.04"
        return 0

    def nvmlSystemGetNVMLVersion(self, text, size):
        text.value = b"13.580.159.04"  # as a real one of CUDA 13 says it
        return 0

    def nvmlSystemGetCudaDriverVersion_v2(self, number):
        number._obj.value = 13010
        return 0

    def nvmlDeviceGetCount_v2(self, number):
        number._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        return index.value * 15  # a GPU that is lost

    def nvmlDeviceGetPciInfo_v3(self, handle, pci):
        pci._obj.bus_id = b"00000000:3B:00.0"
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, handle, major, minor):
        major._obj.value, minor._obj.value = 9, 0
        return 0


def said(capsys):
    _driver_child.main()
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_what_the_library_says(monkeypatch, capsys):
    monkeypatch.setattr(ctypes, "CDLL", Library)
    source = {"source": "libnvidia-ml.so.1"}
    assert said(capsys) == [
        {"component": "nvidia", "version": "580.159.04", **source},
        {"component": "nvml", "version": "580.159.04", **source},
        {"component": "cuda", "version": "13.1", **source},
        {"index": 0, "bus": "00000000:3B:00.0", "arch": "sm_90", **source},
    ]


def test_an_old_library_says_what_it_can(monkeypatch, capsys):
    monkeypatch.setattr(ctypes, "CDLL", Library)
    monkeypatch.delattr(Library, "nvmlDeviceGetCount_v2")
    assert [line.get("component") for line in said(capsys)] == ["nvidia", "nvml", "cuda"]


@pytest.mark.parametrize(
    ("said", "release"),
    [
        ("13.580.159.04", "580.159.04"),
        ("12.535.129.03", "535.129.03"),
        ("11.450.80", "450.80"),
        ("550.144", "550.144"),
        ("570.86.10", "570.86.10"),
        ("1.2.3", "1.2.3"),
        ("", ""),
        ("unknown", "unknown"),
    ],
)
def test_the_driver_s_own_number_is_what_nvml_says_behind_its_cuda_major(said, release):
    assert _driver_child.release(said) == release


def test_no_library_says_nothing(monkeypatch, capsys):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library("libcuda.so.1"))
    assert said(capsys) == []


def test_the_bus_address_lies_where_the_library_writes_it():
    assert _driver_child.PciInfo.bus_id.offset == 16 + 5 * 4
    assert ctypes.sizeof(_driver_child.PciInfo) == 16 + 5 * 4 + 32


XML = """<?xml version="1.0" ?>
<nvidia_smi_log>
\t<attached_gpus>1</attached_gpus>
\t<gpu id="00000000:00:06.0">
\t\t<product_name>NVIDIA H200</product_name>
\t\t<mig_mode>
\t\t\t<current_mig>Disabled</current_mig>
\t\t</mig_mode>
\t\t<mig_devices>
\t\t\tNone
\t\t</mig_devices>
\t\t<fb_memory_usage>
\t\t\t<total>143771 MiB</total>
\t\t</fb_memory_usage>
\t</gpu>
</nvidia_smi_log>
"""


def test_an_empty_list_of_instances_splits_nothing():
    (only,) = parse(clean(XML)).accelerators
    assert (only.partition, only.memory_total_bytes) == (None, 143771 << 20)
