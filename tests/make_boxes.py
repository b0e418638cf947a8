"""Makes the boxes on which the suite tries every adapter's probe.

    python tests/make_boxes.py > conformance/src/vllm_adapter_conformance/rules/boxes.json

Some are what a committed report says, others are composed: functions of pci.ids (2026-05), nodes
of the vendors' drivers. Serial numbers are left out. A test compares the file with what this
prints.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from vllm_adapter.hostfacts.facts import (
    DeviceNode,
    HostFacts,
    Line,
    OsFacts,
    PciDevice,
    TorchBuild,
)
from vllm_adapter_doctor.report.read import parse_report

DATA = Path(__file__).parent / "data"
GPU_3D, VGA, DISPLAY, ACCELERATOR, BRIDGE = (
    "0x030200",
    "0x030000",
    "0x038000",
    "0x120000",
    "0x068000",
)

REPORTS: dict[str, tuple[str, dict[str, int]]] = {
    "told-nvidia-q": ("tool_outputs/nvidia-smi-q.txt", {"cuda": 1}),
    "told-nvidia-2080ti": ("reports/collect-env/17-2080ti-8x-sm75.txt", {"cuda": 8}),
    "told-nvidia-old": ("reports/numa-sysfs/04-nvidia-smi-xml-driver-390-fermi.txt", {"cuda": 1}),
    "told-amd-mi300x": ("reports/topology-amd/06-8xmi300x-amd-smi-topology.txt", {"rocm": 8}),
    "told-amd-mi300a": ("reports/collect-env/11-mi300a-4xapu.txt", {"rocm": 4}),
    "told-amd-generic-name": (
        "reports/collect-env/19-sglang-check-env-mi300-generic-name.txt",
        {"rocm": 8},
    ),
    "told-ascend-910b3": ("reports/ascend/04-npu-smi-8x910b3.txt", {"ascend": 8}),
    "told-ascend-one": ("reports/ascend/05-npu-smi-1x910b4-id-starts-at-1.txt", {"ascend": 1}),
    "told-intel-b60": ("reports/intel/05-torch-collect-env-8xb60-xpu.txt", {"xpu": 8}),
    "told-intel-laptop": ("reports/intel/06-inxi-laptop-intel-only.txt", {}),
    "told-gaudi2": ("reports/other-vendors/01-hl-smi-8xgaudi2-one-busy.txt", {"gaudi": 8}),
    "told-musa-topo": ("reports/other-vendors/04-mthreads-topo-table.txt", {"musa": 8}),
    "told-metax-torch-cuda": (
        "reports/other-vendors/06-metax-c500-torch-cuda-true-platform-probe.txt",
        {"metax": 1},
    ),
    "told-metax": ("tool_outputs/mx-smi.txt", {"metax": 2}),
    "told-cambricon": ("tool_outputs/cnmon.txt", {"mlu": 2}),
    "told-hygon": ("tool_outputs/hy-smi.txt", {"hygon": 2}),
    "told-iluvatar": ("tool_outputs/ixsmi.txt", {"iluvatar": 2}),
    "told-kunlunxin": ("tool_outputs/kunlunxin-xpu-smi.txt", {"kunlunxin": 1}),
    "told-thead": ("tool_outputs/ppu-smi.txt", {"thead": 1}),
    "told-tpu-host": ("reports/collect-env/15-tpu-cpu-torch.txt", {}),
    "told-cpu-vm": ("reports/collect-env/07-cpu-build-gcp-epyc-vm.txt", {}),
    "told-macos": ("reports/collect-env/13-macos-arm64-cpu.txt", {}),
    "told-wsl-no-gpu": ("reports/collect-env/03-wsl2-cpu-torch-cuda-vllm-wheel.txt", {}),
}


def told() -> Iterator[dict[str, Any]]:
    """The boxes of reports: what is needed to find devices, and nothing that names a machine."""
    for name, (file, devices) in REPORTS.items():
        facts = parse_report((DATA / file).read_bytes())
        accelerators = tuple(
            replace(one, uuid=None, processes=(), cpus=(), health=type(one.health)())
            for one in facts.accelerators
        )
        links = tuple(replace(one, links=(), nics=(), nic_names=()) for one in facts.links)
        short = HostFacts(
            os=OsFacts(facts.os.name, None, facts.os.machine),
            pci=facts.pci,
            nodes=facts.nodes,
            torch=facts.torch,
            accelerators=accelerators,
            links=() if accelerators else links,
            report=(Line(1, file.rpartition("/")[2]),),
        )
        yield {"id": name, "origin": f"tests/data/{file}", "devices": devices, "facts": short}


def cards(
    vendor: str, device: str, kind: str, count: int = 1, bus: int = 0x10
) -> tuple[PciDevice, ...]:
    return tuple(
        PciDevice(f"0000:{bus + 4 * n:02x}:00.0", vendor, device, kind) for n in range(count)
    )


def nodes(*paths: str) -> tuple[DeviceNode, ...]:
    return tuple(DeviceNode(path, "char", True, True) for path in sorted(paths))


def numbered(path: str, count: int, first: int = 0) -> list[str]:
    return [path.format(n=first + n) for n in range(count)]


RENDER = "/dev/dri/renderD{n}"
BMC = PciDevice("0000:03:00.0", "1a03", "2000", VGA)  # ASPEED
HUAWEI_BMC = PciDevice("0000:03:00.0", "19e5", "1711", VGA)
IGPU = PciDevice("0000:00:02.0", "8086", "a7a0", VGA, driver="i915")
NVIDIA = ("/dev/nvidiactl", "/dev/nvidia-uvm")
ASCEND = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
GAUDI = [*numbered("/dev/accel/accel{n}", 8), *numbered("/dev/accel/accel_controlD{n}", 8)]
LIKE_CUDA = TorchBuild("2.6.0", None, "11.6", available=True, visible_devices=8)
LIKE_ROCM = TorchBuild("2.6.0", None, hip="6.1", available=True, visible_devices=8)
STOCK_CUDA = TorchBuild("2.13.0", "cu130", "13.0")

COMPOSED: dict[
    str, tuple[dict[str, int], Iterable[PciDevice], Iterable[DeviceNode], TorchBuild | None]
] = {
    "nvidia-8xh200": (
        {"cuda": 8},
        (BMC, *cards("10de", "2335", GPU_3D, 8), *cards("10de", "22a3", BRIDGE, 4, 0x60)),
        nodes(*numbered("/dev/nvidia{n}", 8), *NVIDIA),
        STOCK_CUDA,
    ),
    "nvidia-laptop": (
        {"cuda": 1},
        (IGPU, *cards("10de", "2684", GPU_3D)),
        nodes("/dev/nvidia0", *NVIDIA, *numbered(RENDER, 2, 128)),
        STOCK_CUDA,
    ),
    "nvidia-and-arc": (
        {"cuda": 1, "xpu": 1},
        (*cards("10de", "2684", VGA), *cards("8086", "e20b", VGA, 1, 0x40)),
        nodes("/dev/nvidia0", *NVIDIA, *numbered(RENDER, 2, 128)),
        None,
    ),
    "nvidia-switches-and-sound": (
        {},
        (BMC, *cards("10de", "22a3", BRIDGE, 4), *cards("10de", "22ba", "0x040300", 1, 0x40)),
        (),
        None,
    ),
    "amd-8xmi300x": (
        {"rocm": 8},
        (BMC, *cards("1002", "74a1", ACCELERATOR, 8)),
        nodes("/dev/kfd", *numbered(RENDER, 8, 128)),
        None,
    ),
    "amd-8xmi250x": (
        {"rocm": 8},
        (BMC, *cards("1002", "7408", DISPLAY, 8)),
        nodes("/dev/kfd", *numbered(RENDER, 8, 128)),
        None,
    ),
    "amd-laptop": (
        {},
        cards("1002", "15bf", VGA),
        nodes("/dev/kfd", *numbered(RENDER, 1, 128)),
        None,
    ),
    "intel-a770": ({"xpu": 1}, cards("8086", "56a0", VGA), nodes(*numbered(RENDER, 1, 128)), None),
    "intel-2xmax1550": (
        {"xpu": 4},
        (BMC, *cards("8086", "0bd5", DISPLAY, 2)),
        nodes(*numbered(RENDER, 2, 128)),
        None,
    ),
    "intel-laptop-with-npu": (
        {},
        (IGPU, PciDevice("0000:00:0b.0", "8086", "7d1d", ACCELERATOR)),
        nodes("/dev/accel/accel0", *numbered(RENDER, 1, 128)),
        None,
    ),
    "ascend-8x910b": (
        {"ascend": 8},
        (HUAWEI_BMC, *cards("19e5", "d802", ACCELERATOR, 8)),
        nodes(*numbered("/dev/davinci{n}", 8), *ASCEND),
        None,
    ),
    "huawei-server-without-npu": ({}, (HUAWEI_BMC,), (), None),
    "gaudi-8xgaudi2": (
        {"gaudi": 8},
        (BMC, *cards("1da3", "1020", ACCELERATOR, 8)),
        nodes(*GAUDI),
        None,
    ),
    "musa-8xs4000": (
        {"musa": 8},
        (BMC, *cards("1ed5", "0327", VGA, 8)),
        nodes(*numbered("/dev/mtgpu.{n}", 8), *numbered(RENDER, 8, 128)),
        None,
    ),
    "metax-8xc500": (
        {"metax": 8},
        (BMC, *cards("9999", "0a01", DISPLAY, 8)),
        nodes("/dev/mxcd", *numbered(RENDER, 8, 128)),
        LIKE_CUDA,
    ),
    "cambricon-8xmlu370": (
        {"mlu": 8},
        (BMC, *cards("cabc", "0370", ACCELERATOR, 8)),
        nodes("/dev/cambricon_ctl", *numbered("/dev/cambricon_dev{n}", 8)),
        None,
    ),
    "hygon-8xk100": (
        {"hygon": 8},
        (BMC, *cards("1d94", "6211", DISPLAY, 8)),
        nodes("/dev/kfd", "/dev/mkfd", *numbered(RENDER, 8, 128)),
        LIKE_ROCM,
    ),
    "biren-8": (
        {"biren": 8},
        (BMC,),
        nodes("/dev/biren-m", *numbered("/dev/biren/card_{n}", 8)),
        None,
    ),
    "iluvatar-2": ({"iluvatar": 2}, (BMC, *cards("1e3e", "0002", GPU_3D, 2)), (), LIKE_CUDA),
    "kunlunxin-8": ({"kunlunxin": 8}, (BMC, *cards("1d22", "3685", ACCELERATOR, 8)), (), None),
    "thead-8": ({"thead": 8}, (BMC, *cards("1ded", "6001", GPU_3D, 8)), (), LIKE_CUDA),
    "enflame-8": ({"enflame": 8}, (BMC, *cards("1e36", "0021", ACCELERATOR, 8)), (), None),
    "tpu-4": ({"tpu": 4}, cards("1ae0", "0063", ACCELERATOR, 4), (), None),
    "trainium-16": ({"neuron": 16}, cards("1d0f", "7364", "0x088000", 16), (), None),
    "plain-server": ({}, (BMC,), (), STOCK_CUDA),
    "virtual-machine": (
        {},
        (*cards("1af4", "1050", DISPLAY), *cards("1b36", "0100", VGA, 1, 0x40)),
        nodes(*numbered(RENDER, 1, 128)),
        None,
    ),
}


def composed() -> Iterator[dict[str, Any]]:
    """The boxes that no report gives whole: functions and nodes as a live machine has them."""
    for name, (devices, pci, paths, torch) in COMPOSED.items():
        system = OsFacts("Linux", None, "aarch64" if name.startswith("ascend") else "x86_64")
        facts = HostFacts(
            os=system,
            pci=tuple(sorted(pci, key=lambda one: one.bdf)),
            nodes=tuple(paths),
            torch=torch,
        )
        origin = "composed: ids of pci.ids (2026-05), nodes of the vendor's driver"
        yield {"id": name, "origin": origin, "devices": devices, "facts": facts}


def pruned(value: Any) -> Any:
    """The value without what was not told of: the reader knows the defaults."""
    if isinstance(value, dict):
        kept = {key: pruned(inner) for key, inner in value.items()}
        return {key: inner for key, inner in kept.items() if inner not in (None, [], {})}
    return [pruned(inner) for inner in value] if isinstance(value, list) else value


def render() -> str:
    """The file: one box a line."""
    lines = []
    for box in (*composed(), *told()):
        raw = box | {"facts": pruned(box["facts"].to_json())}
        lines.append(json.dumps(raw, ensure_ascii=True, separators=(",", ":")))
    return "[\n" + ",\n".join(lines) + "\n]\n"


if __name__ == "__main__":
    print(render(), end="")
