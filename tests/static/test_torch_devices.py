"""What is read from torch's device properties, whatever build they are of."""

from __future__ import annotations

from types import SimpleNamespace as Fake

import pytest

from vllm_adapter.discovery.torch_devices import torch_devices
from vllm_adapter.hostfacts.facts import Accelerator

pytestmark = pytest.mark.static

H200 = Fake(
    name="NVIDIA H200",
    major=9,
    minor=0,
    total_memory=150109880320,
    multi_processor_count=132,
    pci_domain_id=0,
    pci_bus_id=0x3B,
    pci_device_id=0,
)
MI300X = Fake(
    name="AMD Radeon Graphics",
    major=9,
    minor=4,
    gcnArchName="gfx942:sramecc+:xnack-",
    total_memory=206141652992,
    multi_processor_count=304,
)
ASCEND = Fake(name="Ascend910B3", total_memory=65452113920, cube_core_num=20, vector_core_num=40)


def fake(kind, properties, hip=None):
    module = Fake(get_device_properties=lambda index: properties[index])
    return Fake(version=Fake(hip=hip), **{kind: module})


def test_a_cuda_build():
    (one,) = torch_devices("cuda", fake("cuda", [H200]), "cuda", 1)
    assert one == Accelerator(
        "cuda",
        0,
        "torch",
        name="NVIDIA H200",
        arch="sm_90",
        bdf="0000:3b:00.0",
        memory_total_bytes=150109880320,
        compute_units=132,
    )


def test_amds_numbers_are_no_compute_capability():
    (one,) = torch_devices("rocm", fake("cuda", [MI300X], hip="7.2"), "cuda", 1)
    assert (one.arch, one.compute_units, one.bdf) == ("gfx942", 304, None)
    bare = Fake(name="AMD", major=9, minor=4)
    (one,) = torch_devices("rocm", fake("cuda", [bare], hip="7.2"), "cuda", 1)
    assert one.arch is None


def test_torch_npu_tells_cube_cores_and_no_arch():
    (one,) = torch_devices("ascend", fake("npu", [ASCEND]), "npu", 1)
    assert (one.name, one.arch, one.compute_units) == ("Ascend910B3", None, 20)


@pytest.mark.parametrize(
    "properties",
    [Fake(), Fake(name="", total_memory="16 GB", multi_processor_count=-1, pci_bus_id=None)],
)
def test_what_is_not_there_is_unknown(properties):
    (one,) = torch_devices("acme", fake("acme", [properties]), "acme", 1)
    assert one == Accelerator("acme", 0, "torch")


def test_a_device_that_fails_is_a_bare_one():
    one, other = torch_devices("cuda", fake("cuda", [H200]), "cuda", 2)
    assert one.name == "NVIDIA H200" and other == Accelerator("cuda", 1, "torch")


def test_a_module_without_properties():
    torch = Fake(version=Fake(), hpu=Fake())
    assert torch_devices("gaudi", torch, "hpu", 2) == [
        Accelerator("gaudi", 0, "torch"),
        Accelerator("gaudi", 1, "torch"),
    ]
