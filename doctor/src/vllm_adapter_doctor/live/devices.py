"""Accelerators by the files of their kernel drivers: no tool is asked.

A device whose driver leaves no such file is in `HostFacts.pci` alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from vllm_adapter.hostfacts._tree import Tree, key_values, parse_integer
from vllm_adapter.hostfacts.facts import Accelerator, PciDevice
from vllm_adapter.hostfacts.known_vendors import is_integrated, unified_pci, vendor_of
from vllm_adapter_doctor.report.parsers._common import normal_bdf

_NVIDIA: Final = "/proc/driver/nvidia/gpus"
_MUSA: Final = "/proc/driver/musa"
_PCI: Final = "/sys/bus/pci/devices"
_VRAM: Final = ("mem_info_vram_total", "tile*/physical_vram_size_bytes", "drm/*/lmem_total_bytes")
"""Bytes of a card's own memory under its PCI folder: of amdgpu; of xe, a tile each; of i915."""
_UUID: Final = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def read_devices(
    tree: Tree, kfd: Sequence[Accelerator], pci: Sequence[PciDevice]
) -> tuple[Accelerator, ...]:
    """What the drivers' own files list; `kfd` is what `read_kfd` gave."""
    return (
        *_nvidia(tree),
        *(_amd(tree, device) for device in kfd),
        *_intel(tree, pci),
        *_gaudi(tree),
        *_musa(tree),
    )


def _nvidia(tree: Tree) -> Iterable[Accelerator]:
    # the driver numbers its devices by bus address, as its tool does
    folders = sorted((normal_bdf(name) or "", name) for name in tree.names(_NVIDIA) or ())
    for index, (bdf, name) in enumerate(folders):
        info = key_values(tree.text(f"{_NVIDIA}/{name}/information"))
        uuid = info.get("GPU UUID", "")  # question marks where the device is not awake
        yield Accelerator(
            "cuda",
            index,
            _NVIDIA,
            name=info.get("Model") or None,
            bdf=bdf or None,
            uuid=uuid if _UUID.fullmatch(uuid) else None,
        )


def _amd(tree: Tree, device: Accelerator) -> Accelerator:
    if device.bdf is None:
        return device
    folder = f"{_PCI}/{device.bdf}"
    name = (tree.text(f"{folder}/product_name") or "").strip()
    mode = (tree.text(f"{folder}/current_compute_partition") or "").strip()
    used = parse_integer(tree.text(f"{folder}/mem_info_vram_used"))
    return replace(
        device,
        name=name or None,
        # the figure is of the whole card, which several partitions share
        memory_used_bytes=used if mode in ("", "SPX") else None,
        partition=mode if mode not in ("", "SPX") else None,
    )


def _intel(tree: Tree, pci: Sequence[PciDevice]) -> Iterable[Accelerator]:
    """Cards that the driver has given memory of their own."""
    cards = [device for device in pci if device.driver in ("xe", "i915") and vendor_of(device)]
    index = 0
    for card in sorted(cards, key=lambda card: card.bdf):
        memory = _own_memory(tree, card.bdf)
        if memory is not None:
            yield Accelerator(
                "xpu", index, card.driver or "", bdf=card.bdf, memory_total_bytes=memory
            )
            index += 1


def _gaudi(tree: Tree) -> Iterable[Accelerator]:
    """Of /sys/class/accel, where other makers' NPUs are too, or the older class of its own."""
    found: dict[int, str] = {}
    for name in tree.names("/sys/class/accel") or ():
        number = parse_integer(name.removeprefix("accel"))
        folder = f"/sys/class/accel/{name}/device"
        if number is not None and tree.link_name(f"{folder}/driver") == "habanalabs":
            found[number] = folder
    for name in tree.names("/sys/class/habanalabs") or ():
        number = parse_integer(name.removeprefix("hl"))
        if number is not None:
            found.setdefault(number, f"/sys/class/habanalabs/{name}")
    for number, folder in sorted(found.items()):
        name = (tree.text(f"{folder}/device_type") or "").strip()
        bdf = normal_bdf(tree.text(f"{folder}/pci_addr") or "")
        yield Accelerator("gaudi", number, folder.rsplit("/", 1)[0], name=name or None, bdf=bdf)


def _musa(tree: Tree) -> Iterable[Accelerator]:
    for folder in tree.names(_MUSA) or ():
        number = parse_integer(folder.removeprefix("gpu"))
        if not folder.startswith("gpu") or number is None:
            continue
        name = (tree.text(f"{_MUSA}/{folder}/devname") or "").strip()
        yield Accelerator("musa", number, _MUSA, name=name or None)


def with_pci(
    tree: Tree, found: Sequence[Accelerator], pci: Sequence[PciDevice]
) -> tuple[Accelerator, ...]:
    """`found`, each with what its PCI function says.

    The kernel's NUMA node is believed over a tool's, which may be cut off or of another numbering.
    """
    functions = {device.bdf: device for device in pci}
    return tuple(
        _placed(tree, one, functions[one.bdf]) if one.bdf in functions else one for one in found
    )


def _placed(tree: Tree, one: Accelerator, device: PciDevice) -> Accelerator:
    integrated = one.integrated
    if integrated is None:
        integrated = is_integrated(device)
    shared = one.unified_memory
    if shared is None and (integrated or f"{device.vendor}:{device.device}" in unified_pci()):
        shared = True
    memory = one.memory_total_bytes
    if memory is None and not integrated and one.partition is None and one.die is None:
        memory = _own_memory(tree, device.bdf)
    return replace(
        one,
        numa_nodes=one.numa_nodes if device.numa_node is None else (device.numa_node,),
        driver=one.driver or device.driver,
        integrated=integrated,
        unified_memory=shared,
        memory_total_bytes=memory,
    )


def _own_memory(tree: Tree, bdf: str) -> int | None:
    for pattern in _VRAM:
        sizes = [
            parse_integer(tree.text(path)) for path in tree.matching(f"{_PCI}/{bdf}/{pattern}")
        ]
        whole = [size for size in sizes if size is not None and size > 0]
        if whole and len(whole) == len(sizes):
            return sum(whole)
    return None
