"""The vendors' probes over every open report: the right devices, and none on others' boxes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from vllm_adapter.contract.manifest import read_manifest
from vllm_adapter.discovery.descriptors import load_all
from vllm_adapter_doctor.devices.driver_rules import negotiate
from vllm_adapter_doctor.devices.recognition import recognise
from vllm_adapter_doctor.report.read import read_report

pytestmark = pytest.mark.static

REPORTS = Path(__file__).parents[1] / "data/reports"
ADAPTERS = Path(__file__).parents[2] / "adapters"
NAMES = ("cuda", "rocm", "xpu", "ascend", "gaudi", "musa", "mlu", "biren")
MANIFESTS = [read_manifest(ADAPTERS / n / f"src/vllm_adapter_{n}/adapter.json") for n in NAMES]
DESCRIBED = [load_all(manifest) for manifest in MANIFESTS]

EXPECTED = {
    "ascend/01-topo-8x910b3-hccs.txt": "8 ascend:?",
    "ascend/03-topo-8x-pcie-sys-indented-doc-paste.txt": "8 ascend:?",
    "ascend/04-npu-smi-8x910b3.txt": "8 ascend:910b3",
    "ascend/05-npu-smi-1x910b4-id-starts-at-1.txt": "1 ascend:910b4",
    "ascend/07-collect-env-8x910b2-openeuler.txt": "8 ascend:910b2",
    "collect-env/01-cuda-driver-510-torch-cu121-unavailable.txt": "1 cuda:sm_86",
    "collect-env/04-wsl2-rocm-7900xt-no-amdsmi.txt": "1 rocm:gfx1100-rx7900xt",
    "collect-env/11-mi300a-4xapu.txt": "4 rocm:gfx942-mi300a",
    "collect-env/17-2080ti-8x-sm75.txt": "8 cuda:sm_75",
    "collect-env/19-sglang-check-env-mi300-generic-name.txt": "8 rocm:gfx942",
    "collect-env/21-sglang-check-env-wsl-3-of-4-gpus.txt": "4 cuda:?",
    "collect-env/24-debug-platform-probe-log-rocm.txt": "1 rocm:gfx942",
    "errors/06-driver-525-torch-cu124-works.txt": "8 cuda:sm_80-a100-pcie-80gb",
    "errors/07-hip-invalid-device-ordinal-ray.txt": "1 rocm:gfx90a-mi250x",
    "errors/15-bf16-on-2080ti.txt": "1 cuda:sm_75",
    "errors/16-fp8e4nv-on-a10.txt": "2 cuda:sm_86-a10",
    "errors/18-no-kernel-image-punica-lora-v100.txt": "1 cuda:?",
    "errors/19-flashinfer-no-kernel-image-t4.txt": "1 cuda:sm_75-t4",
    "errors/36-npu-oom-60gib.txt": "1 ascend:?",
    "errors/46-no-torch-at-all-h100.txt": "4 cuda:sm_90-h100-sxm",
    "intel/01-xpu-smi-topology-2xmax1100-xl24.txt": "2 xpu:?",
    "intel/03-xpu-smi-topology-8xb60-two-sockets-partial.txt": "1 xpu:xe2-hpg-b60, 7 xpu:?",
    "intel/05-torch-collect-env-8xb60-xpu.txt": "8 xpu:xe2-hpg-b60",
    "intel/08-lspci-k-arc-a770-i915.txt": "1 xpu:xe-hpg-a770",
    "numa-sysfs/04-nvidia-smi-xml-driver-390-fermi.txt": "1 cuda:?",
    "numa-sysfs/05-nvidia-smi-q-log-960m.txt": "1 cuda:?",
    "nvidia-smi/02-wsl-smi-535-driver-537.txt": "1 cuda:sm_86",
    "nvidia-smi/05-pre-2019-header-without-cuda-version.txt": "2 cuda:?",
    "other-vendors/01-hl-smi-8xgaudi2-one-busy.txt": "8 gaudi:gaudi2",
    "other-vendors/03-habanalabs-dmesg-4-cards-unusable.txt": "7 gaudi:?",
    "other-vendors/04-mthreads-topo-table.txt": "8 musa:?",
    "topology-amd/01-8gcd-mi250x-rocm-smi-showtopo-weights.txt": "8 rocm:?",
    "topology-amd/03-8gcd-mi250-all-xgmi-link-type-only.txt": "8 rocm:?",
    "topology-amd/06-8xmi300x-amd-smi-topology.txt": "8 rocm:?",
    "topology-amd/08-4xpcie-weight52-numa-permuted.txt": "4 rocm:?",
    "topology-amd/09-8gpu-showtoponuma-only.txt": "8 rocm:?",
    "topology-nvidia/01-8xh100-nvswitch-nv18.txt": "8 cuda:?",
    "topology-nvidia/02-8xl40s-pcie-node-sys.txt": "8 cuda:?",
    "topology-nvidia/03-8x4090-pix-sys-ansi-tabs.txt": "8 cuda:?",
    "topology-nvidia/05-8xv100-container-cpuset.txt": "8 cuda:?",
    "topology-nvidia/06-2xa6000-nvlink-bridge.txt": "2 cuda:?",
    "topology-nvidia/07-2x5090-phb-ansi-leading-tab.txt": "2 cuda:?",
    "topology-nvidia/09-8xh20-26-nics-ansi.txt": "8 cuda:?",
    "topology-nvidia/11-2xl20-122-nics-capped.txt": "2 cuda:?",
    "topology-nvidia/13-4xh100-nv6-even-odd-affinity.txt": "4 cuda:?",
    "topology-nvidia/15-8xa800-pcie-mixed-bridges-nv8-nv6-nv4.txt": "8 cuda:?",
    "topology-nvidia/17-8xa100-sxm-no-nvlink-glued-columns.txt": "8 cuda:?",
    "topology-nvidia/19-8xa6000-single-space.txt": "8 cuda:?",
    "topology-nvidia/20-1xada6000-nic-single-space.txt": "1 cuda:?",
    "topology-nvidia/21-10x4080-two-sockets.txt": "10 cuda:?",
    "topology-nvidia/22-4xa100-pcie-nvlink-pairs.txt": "4 cuda:?",
    "topology-nvidia/24-8x-l20z-unknown-name-vm-phb-nics.txt": "8 cuda:?",
    "topology-nvidia/25-1xt4-na-affinity-nic.txt": "1 cuda:?",
    "topology-nvidia/27-8xb200-2-nics.txt": "8 cuda:?",
    "topology-nvidia/28-4xh100nvl-pairs-vm-both-numa.txt": "4 cuda:?",
    "topology-nvidia/29-2-of-8-h20-visible.txt": "2 cuda:?",
    "topology-nvidia/30-8xl40-cpu-holes-in-affinity.txt": "8 cuda:?",
    "topology-nvidia/31-8xa800-named-graphics-device.txt": "8 cuda:?",
    "topology-nvidia/32-4x4090-wsl-blank-affinity.txt": "4 cuda:?",
    "topology-nvidia/34-1xa100-old-two-column-single.txt": "1 cuda:?",
    "topology-nvidia/35-4xgb200-gpu-numa-id-filled.txt": "4 cuda:?",
    "topology-nvidia/36-8x4090-all-sys-nics-on-one-gpu.txt": "8 cuda:?",
    "topology-nvidia/37-5gpu-unequal-sockets.txt": "5 cuda:?",
    "topology-nvidia/38-2017-style-mlx4-header-no-numa.txt": "8 cuda:?",
    "topology-nvidia/39-p2p-rw-matrix-gns.txt": "2 cuda:?",
}
"""Devices by adapter and descriptor; ? where the report names no product. All others have none."""


@pytest.mark.parametrize("file", sorted(REPORTS.rglob("*.txt")), ids=lambda file: file.name)
def test_devices_of_a_report(file):
    facts, found = read_report(str(file)), Counter()
    for manifest, described in zip(MANIFESTS, DESCRIBED, strict=True):
        for one in recognise(manifest, facts, described):
            stem = Path(one.capability.origin).stem if one.capability else "?"
            found[f"{manifest.name}:{stem}"] += 1
    said = ", ".join(f"{count} {key}" for key, count in found.items())
    assert said == EXPECTED.get(file.relative_to(REPORTS).as_posix(), "")


def test_the_table_names_reports_that_are_there():
    assert [name for name in EXPECTED if not (REPORTS / name).is_file()] == []


NEGOTIATED = {
    "collect-env/01-cuda-driver-510-torch-cu121-unavailable.txt": [
        "refuse driver",
        "downgrade float8_e4m3fn to bfloat16",
    ],
    "collect-env/17-2080ti-8x-sm75.txt": [
        "ok driver",
        "downgrade float8_e4m3fn to float16",
        "downgrade bfloat16 to float16",
    ],
    "errors/06-driver-525-torch-cu124-works.txt": [
        "ok driver",
        "note ptx",
        "downgrade float8_e4m3fn to bfloat16",
    ],
    "errors/16-fp8e4nv-on-a10.txt": ["downgrade float8_e4m3fn to bfloat16"],
    "ascend/04-npu-smi-8x910b3.txt": ["downgrade float8_e4m3fn to bfloat16"],
    "other-vendors/01-hl-smi-8xgaudi2-one-busy.txt": [],
    "errors/46-no-torch-at-all-h100.txt": [],
}


@pytest.mark.parametrize("file", NEGOTIATED)
def test_a_report_is_negotiated_and_never_a_crash(file):
    facts, said = read_report(str(REPORTS / file)), []
    for manifest, described in zip(MANIFESTS, DESCRIBED, strict=True):
        for one in recognise(manifest, facts, described):
            for decision in negotiate(one.capability, facts, ["float8_e4m3fn", "bfloat16"]):
                to = f" to {decision.to}" if decision.to else ""
                said.append(f"{decision.outcome.value} {decision.subject}{to}")
    assert list(dict.fromkeys(said)) == NEGOTIATED[file]
