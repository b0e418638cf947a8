"""Made-up boxes for the choice of devices, and what the choice says of them."""

from __future__ import annotations

from vllm_adapter.discovery.records import AdapterRecord
from vllm_adapter.hostfacts.facts import Accelerator, HostFacts, Line, PciDevice
from vllm_adapter.settings import Settings
from vllm_adapter_doctor.devices.manager import DeviceManager

GIB = 1 << 30
IGPU = PciDevice("0000:00:02.0", "8086", "a7a0", "0x030000")
TEXT = (Line(1, "a report"),)
CUDA_OK = (AdapterRecord("cuda", "d", "1", "p"),)


def smi(index, name="NVIDIA H200", gib=140, **more):
    return Accelerator(
        "cuda", index, "nvidia-smi", name=name, memory_total_bytes=gib * GIB, **more
    )


def manager(*accelerators, settings=None, records=(), live=False, **facts):
    facts.setdefault("report", () if live else TEXT)
    host = HostFacts(accelerators=accelerators, **facts)
    return DeviceManager(host, settings or Settings(), records, live)


def chosen(choice):
    return [one.device.id for one in choice.chosen]


def reasons(choice):
    return {one.device.id: one.reason for one in choice.rejected}
