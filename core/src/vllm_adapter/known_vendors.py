"""Vendors whose accelerators we know: how each is recognised, named, seen and hidden.

A table and no code a vendor: what differs is data. `source` marks where a row is from: pci.ids is
the list of 2026-05; "vendor" a vendor's own document or code, "vLLM" its source or documents,
"public" scripts of several public projects that agree, "one source" a single one. What nobody
told is None, and users of this table then say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

_DISPLAY: Final = ("0x0300", "0x0302", "0x0380")
_ACCELERATOR: Final = "0x1200"
_EITHER: Final = (*_DISPLAY, _ACCELERATOR)


class PciFunction(Protocol):
    """What of a `PciDevice` recognising needs."""

    @property
    def bdf(self) -> str: ...
    @property
    def vendor(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def class_code(self) -> str: ...


F = TypeVar("F", bound=PciFunction)


@dataclass(frozen=True, slots=True)
class Vendor:
    """One vendor's devices. `adapter` is the name that an adapter for them has.

    `pci` is the PCI vendor id, `classes` the first four digits of its accelerators' classes, and
    `products` their device ids, where the class alone does not tell them from other functions.
    `torch_type` is torch's device type; `visible` is the variable that limits what a process
    sees, `container_visible` the one that the vendor's container runtime reads. Device nodes:
    `numbered` has one a device, `{n}` being the driver's number of it, which with `own_numbers` is
    another than the tool's (`older` are names from before); `control` are those that all devices
    need; `render` says that /dev/dri/renderD* is needed too. `tool` lists the devices.
    """

    adapter: str
    name: str
    pci: str | None
    source: str
    classes: tuple[str, ...] = _EITHER
    products: tuple[str, ...] = ()
    torch_type: str | None = None
    visible: str | None = None
    container_visible: str | None = None
    numbered: tuple[str, ...] = ()
    control: tuple[str, ...] = ()
    render: bool = False
    tool: str | None = None
    own_numbers: bool = False
    older: tuple[str, ...] = ()


_ROWS: Final = (
    Vendor(
        "cuda",
        "NVIDIA",
        "10de",
        "vendor; nodes: public",
        ("0x0300", "0x0302"),
        torch_type="cuda",
        visible="CUDA_VISIBLE_DEVICES",
        container_visible="NVIDIA_VISIBLE_DEVICES",
        numbered=("/dev/nvidia{n}",),
        control=("/dev/nvidiactl", "/dev/nvidia-uvm"),
        tool="nvidia-smi -L",
        own_numbers=True,
    ),
    Vendor(
        "rocm",
        "AMD",
        "1002",
        "vendor, vLLM",
        torch_type="cuda",
        visible="HIP_VISIBLE_DEVICES",
        container_visible="AMD_VISIBLE_DEVICES",
        control=("/dev/kfd",),
        render=True,
        tool="amd-smi list",
    ),
    Vendor(
        "xpu",
        "Intel",
        "8086",
        "vendor, vLLM",
        _DISPLAY,
        torch_type="xpu",
        visible="ZE_AFFINITY_MASK",
        render=True,
        tool="xpu-smi discovery",
    ),
    Vendor(
        "ascend",
        "Huawei Ascend",
        "19e5",
        "vllm-ascend; nodes: public",
        (_ACCELERATOR,),
        torch_type="npu",
        visible="ASCEND_RT_VISIBLE_DEVICES",
        container_visible="ASCEND_VISIBLE_DEVICES",
        numbered=("/dev/davinci{n}",),
        control=("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"),
        tool="npu-smi info -m",
    ),
    Vendor(
        "gaudi",
        "Intel Gaudi",
        "1da3",
        "vendor",
        (_ACCELERATOR,),
        torch_type="hpu",
        visible="HABANA_VISIBLE_MODULES",
        container_visible="HABANA_VISIBLE_DEVICES",
        numbered=("/dev/accel/accel{n}", "/dev/accel/accel_controlD{n}"),
        tool="hl-smi -Q index,module_id,bus_id -f csv",
        older=("/dev/hl{n}",),
    ),
    Vendor(
        "musa",
        "Moore Threads",
        "1ed5",
        "vendor",
        torch_type="musa",
        visible="MUSA_VISIBLE_DEVICES",
        container_visible="MTHREADS_VISIBLE_DEVICES",
        numbered=("/dev/mtgpu.{n}",),
        render=True,
        tool="mthreads-gmi -L",
        older=("/dev/mtgpu{n}",),
    ),
    Vendor(
        "metax",
        "MetaX",
        "9999",
        "public",
        torch_type="cuda",
        visible="CUDA_VISIBLE_DEVICES",
        control=("/dev/mxcd",),
        render=True,
        tool="mx-smi",
    ),
    Vendor(
        "mlu",
        "Cambricon",
        "cabc",
        "public",
        torch_type="mlu",
        visible="MLU_VISIBLE_DEVICES",
        container_visible="CAMBRICON_VISIBLE_DEVICES",
        numbered=("/dev/cambricon_dev{n}",),
        control=("/dev/cambricon_ctl",),
        tool="cnmon",
    ),
    Vendor(
        "hygon",
        "Hygon",
        "1d94",
        "public; the variable is ROCm's, which its stack derives from",
        torch_type="cuda",
        visible="HIP_VISIBLE_DEVICES",
        control=("/dev/kfd", "/dev/mkfd"),
        render=True,
        tool="hy-smi",
    ),
    Vendor(
        "iluvatar",
        "Iluvatar",
        "1e3e",
        "one source",
        torch_type="cuda",
        visible="CUDA_VISIBLE_DEVICES",
        tool="ixsmi",
    ),
    Vendor("enflame", "Enflame", "1e36", "pci.ids", torch_type="gcu", tool="efsmi"),
    Vendor("kunlunxin", "Kunlunxin", "1d22", "pci.ids", tool="xpu-smi"),
    Vendor(
        "thead",
        "T-Head",
        "1ded",
        "one source",
        torch_type="cuda",
        visible="CUDA_VISIBLE_DEVICES",
        tool="ppu-smi",
    ),
    Vendor(
        "biren",
        "Biren",
        None,
        "public",
        torch_type="supa",
        visible="SUPA_VISIBLE_DEVICES",
        container_visible="BIREN_VISIBLE_DEVICES",
        numbered=("/dev/biren/card_{n}",),
        control=("/dev/biren-m",),
        tool="brsmi",
    ),
    Vendor("tpu", "Google TPU", "1ae0", "pci.ids", (_ACCELERATOR,)),
    Vendor(
        "neuron",
        "AWS Neuron",
        "1d0f",
        "pci.ids",
        (),
        ("7064", "7164", "7264", "7364", "7564", "7565"),
        tool="neuron-ls",
    ),
    Vendor("rebellions", "Rebellions", "1eff", "pci.ids"),
    Vendor("tenstorrent", "Tenstorrent", "1e52", "pci.ids", tool="tt-smi"),
    Vendor("qaic", "Qualcomm", "17cb", "pci.ids", (_ACCELERATOR,)),
)

VENDORS: Final[Mapping[str, Vendor]] = {row.adapter: row for row in _ROWS}
"""By the adapter's name."""
BY_PCI: Final[Mapping[str, Vendor]] = {row.pci: row for row in _ROWS if row.pci}
"""By the PCI vendor id."""

# pci.ids: graphics of AMD's processors; 74a0 (MI300A) is a data-centre part and not among them
_AMD_INTEGRATED: Final = frozenset(
    "1114 13c0 1506 150e 1586 15bf 15c8 15d8 15dd 15e7 1636 1638 163f 164c 164d 164e 164f 1681 "
    "1900 1901 1902".split()
)
# LLVM's table of AMDGPU processors, those of kind APU
INTEGRATED_ARCHS: Final = frozenset(
    "gfx902 gfx909 gfx90c gfx1013 gfx1033 gfx1035 gfx1036 gfx1103 gfx1150 gfx1151 gfx1152 "
    "gfx1153".split()
)
UNIFIED_NAMES: Final = ("MI300A", "GB10", "Thor", "Orin", "Tegra")
"""Words in names of accelerators that share the CPU's memory, and are what the box is for."""
UNIFIED_PCI: Final = frozenset({"1002:74a0", "10de:2e12", "10de:2b00"})


def vendor_of(function: PciFunction) -> Vendor | None:
    """Whose accelerator or graphics this PCI function is; None for anything else."""
    row = BY_PCI.get(function.vendor)
    if row is None or (function.class_code[:6] not in row.classes and not row.products):
        return None
    return row if not row.products or function.device in row.products else None


def is_integrated(function: PciFunction) -> bool:
    """Whether a GPU is part of the processor: Intel's sit on bus 00, AMD's have known ids."""
    if function.vendor == "8086":
        return function.bdf.split(":")[1] == "00"
    kaveri = function.device[:3] in ("130", "131")
    return function.vendor == "1002" and (kaveri or function.device in _AMD_INTEGRATED)


def adapters_for(devices: Iterable[F]) -> dict[str, tuple[str, F]]:
    """For each adapter name that the hardware calls for: the vendor, and one such device."""
    found: dict[str, tuple[str, F]] = {}
    for device in devices:
        row = vendor_of(device)
        if row is not None and is_integrated(device) is False:
            found.setdefault(row.adapter, (row.name, device))
    return found


def install_command(adapter: str) -> str:
    """How an adapter of that name is installed."""
    return f"pip install vllm-adapter-{adapter.replace('_', '-')}"
