"""AMD's devices and their links as the kernel's KFD lists them: no ROCm and no tool needed.

The list ignores ROCR_VISIBLE_DEVICES and shows what this control group may use.
"""

from __future__ import annotations

from typing import Final

from vllm_adapter.hostfacts._tree import Tree, parse_integer
from vllm_adapter.hostfacts.device_facts import Link
from vllm_adapter.hostfacts.facts import Accelerator, LinkMatrix

NODES: Final = "/sys/class/kfd/kfd/topology/nodes"
SOURCE: Final = "KFD"
_VENDORS: Final = {0x1002: "rocm", 0x1D94: "hygon"}
_LINKS: Final = {2: "PCIE", 11: "XGMI"}
"""Types of a KFD link that we name. # upstream: linux@6.8 drivers/gpu/drm/amd/amdkfd/kfd_crat.h"""
_LOCAL_MEMORY: Final = (1, 2)
"""Heaps of a device's own memory: seen by the host, and not."""

Properties = dict[str, int]


def read_kfd(tree: Tree) -> tuple[tuple[Accelerator, ...], tuple[LinkMatrix, ...]]:
    """Devices in KFD's order, which is HIP's, and a matrix of links where devices have any."""
    found: list[tuple[int, Properties]] = []
    for name in tree.names(NODES) or ():
        number = parse_integer(name)
        properties = _properties(tree, f"{NODES}/{name}/properties")
        if number is None or number < 0 or not properties.get("simd_count"):
            continue  # a node without SIMDs is a processor, or is hidden from this control group
        found.append((number, properties))
    found.sort()
    vendors = {_VENDORS[p["vendor_id"]] for _, p in found if p.get("vendor_id") in _VENDORS}
    devices: list[Accelerator] = []
    matrices: list[LinkMatrix] = []
    for vendor in sorted(vendors):
        mine = [(n, p) for n, p in found if _VENDORS.get(p.get("vendor_id", 0)) == vendor]
        places = [_bdf(properties) for _, properties in mine]
        devices += [
            _device(tree, vendor, i, n, p, places.count(_bdf(p)) > 1)
            for i, (n, p) in enumerate(mine)
        ]
        matrices += _matrix(tree, vendor, [n for n, _ in mine])
    return tuple(devices), tuple(matrices)


def _device(
    tree: Tree, vendor: str, index: int, number: int, properties: Properties, split: bool
) -> Accelerator:
    location = properties.get("location_id", 0)
    bdf = _bdf(properties)
    if bdf is None:
        tree.missing(f"accelerators.{vendor}.{index}.bdf", f"{NODES}/{number}: location_id")
    memory = _memory(tree, number)
    if memory is None:
        tree.missing(
            f"accelerators.{vendor}.{index}.memory_total_bytes", f"{NODES}/{number}/mem_banks"
        )
    return Accelerator(
        vendor,
        index,
        SOURCE,
        # the top bits number the partitions of one card
        die=location >> 28 if split and bdf else None,
        bdf=bdf,
        arch=_arch(properties.get("gfx_target_version", 0)),
        memory_total_bytes=memory,
        # one node of processor and device together: the older kind of APU
        integrated=True if properties.get("cpu_cores_count") else None,
        compute_units=_units(properties),
    )


def _bdf(properties: Properties) -> str | None:
    location, domain = properties.get("location_id", 0), properties.get("domain", 0)
    if not location or not 0 <= domain <= 0xFFFFFFFF:
        return None
    bus, slot, function = location >> 8 & 0xFF, location >> 3 & 0x1F, location & 7
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"


def _arch(version: int) -> str | None:
    """90402 is gfx942, 90010 is gfx90a: two decimal digits each, the stepping in hexadecimal."""
    if not 10000 <= version <= 999999:
        return None
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _units(properties: Properties) -> int | None:
    simds, each = properties["simd_count"], properties.get("simd_per_cu", 0)
    return simds // each if each and simds % each == 0 else None


def _memory(tree: Tree, number: int) -> int | None:
    folder = f"{NODES}/{number}/mem_banks"
    banks = [_properties(tree, f"{folder}/{name}/properties") for name in tree.names(folder) or ()]
    sizes = [b.get("size_in_bytes", 0) for b in banks if b.get("heap_type") in _LOCAL_MEMORY]
    return sum(sizes) or None


def _matrix(tree: Tree, vendor: str, numbers: list[int]) -> list[LinkMatrix]:
    labels = {number: f"GPU{index}" for index, number in enumerate(numbers)}
    links: dict[tuple[str, str], Link] = {}
    for number in numbers:
        for kind in ("io_links", "p2p_links"):
            folder = f"{NODES}/{number}/{kind}"
            for name in tree.names(folder) or ():
                link = _properties(tree, f"{folder}/{name}/properties")
                other = link.get("node_to", -1)
                text = _LINKS.get(link.get("type", 0))
                if other not in labels or other == number or text is None:
                    continue  # a link to a processor, or of a type that we do not know
                ends = (labels[number], labels[other])
                weight = link.get("weight") or None
                bandwidth = link.get("max_bandwidth") or None
                links.setdefault(ends, Link(*ends, text, weight, None, bandwidth))
    if not links:
        return []
    ordered = tuple(links[ends] for ends in sorted(links))
    devices = tuple(labels[number] for number in numbers)
    return [LinkMatrix(SOURCE, vendor, devices, tuple(range(len(numbers))), links=ordered)]


def _properties(tree: Tree, path: str) -> Properties:
    """Lines "name number"; others are left out."""
    values: Properties = {}
    for line in (tree.text(path) or "").splitlines():
        words = line.split()
        # unique_id has up to twenty digits, the last of them too many for `parse_integer`
        if len(words) == 2 and words[1].isascii() and words[1].isdigit() and len(words[1]) <= 20:
            values[words[0]] = int(words[1])
    return values
