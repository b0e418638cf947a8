"""One list of a box's devices, from everything that was said of it.

Vendors' tools, the PCI bus, tables of links, device nodes and torch each tell of some devices.
They are joined by UUID and bus address, never by row; where nothing joins two views, the more
complete one counts and a note says what could not be told. A card can be several devices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from vllm_adapter.hostfacts.facts import Accelerator, DeviceNode, HostFacts, PciDevice
from vllm_adapter.hostfacts.known_vendors import (
    VENDORS,
    Vendor,
    is_integrated,
    unified_names,
    unified_pci,
    vendor_of,
)
from vllm_adapter.hostfacts.vendor_files import LazyMapping, sections
from vllm_adapter_doctor.devices.box_device import Device, Inventory
from vllm_adapter_doctor.devices.device_names import arch as product_arch
from vllm_adapter_doctor.vendor_data.pci_products import two_stacks

_INTEGRATED_NAMES: Mapping[str, re.Pattern[str]] = LazyMapping(
    lambda: {vendor: re.compile(text) for vendor, text in sections("integrated", "names")}
)
_LISTS = ("lspci", "inxi")
_TORCH = ("torch", "sglang", "rocminfo", "sycl-ls")


def inventory(facts: HostFacts) -> Inventory:
    """The devices that the facts tell of. Never raises; facts without a device give none."""
    notes: list[str] = []
    reported = [_true_vendor(one, facts.pci, notes) for one in facts.accelerators]
    physical = _physical(facts.pci, notes)
    by_bus = [(row, pci) for pci in physical if (row := vendor_of(pci))]
    vendors = dict.fromkeys(
        [one.vendor for one in reported]
        + [matrix.vendor for matrix in facts.links]
        + [row.adapter for row, _ in by_bus]
    )
    found: list[Device] = []
    for vendor in vendors:
        accelerators = [one for one in reported if one.vendor == vendor]
        functions = [pci for row, pci in by_bus if row.adapter == vendor]
        found += _of_vendor(vendor, accelerators, functions, facts, notes)
    found += _by_nodes(facts.nodes, vendors, notes)
    system = facts.memory.total_bytes
    split = {one.vendor for one in found if one.die}
    archs = _archs(reported)
    completed = [
        _with_arch(_completed(one, facts.nodes, system, one.vendor in split), archs)
        for one in found
    ]
    return Inventory(tuple(completed), tuple(notes))


def _physical(listed: Iterable[PciDevice], notes: list[str]) -> list[PciDevice]:
    """The functions without those that SR-IOV made of one: same slot, same ids, a later number."""
    listed = list(listed)
    first = {
        (pci.bdf[:-1], pci.vendor, pci.device, pci.class_code)
        for pci in listed
        if pci.bdf.endswith(".0") and vendor_of(pci)
    }
    kept = [
        pci
        for pci in listed
        if pci.bdf.endswith(".0")
        or (pci.bdf[:-1], pci.vendor, pci.device, pci.class_code) not in first
    ]
    if len(kept) < len(listed):
        virtual = len(listed) - len(kept)
        notes.append(f"{virtual} virtual functions (SR-IOV) are parts of devices: not counted")
    return kept


def _archs(reported: Iterable[Accelerator]) -> Mapping[tuple[str, str], str | None]:
    """The arch of each product of which one was told; None where two of a name have two."""
    found: dict[tuple[str, str], str | None] = {}
    for one in reported:
        if one.name and one.arch:
            key = (one.vendor, one.name)
            found[key] = one.arch if found.get(key, one.arch) == one.arch else None
    return found


def _with_arch(device: Device, archs: Mapping[tuple[str, str], str | None]) -> Device:
    """Devices of one product have one arch: as any of them told it, else by the product's name."""
    if device.arch or not device.name:
        return device
    by_name = archs.get((device.vendor, device.name)) or product_arch(device)
    return replace(device, arch=by_name) if by_name else device


def _of_vendor(
    vendor: str,
    accelerators: list[Accelerator],
    functions: list[PciDevice],
    facts: HostFacts,
    notes: list[str],
) -> list[Device]:
    seen = [one for one in accelerators if one.source.startswith(_TORCH)]
    listed = [one for one in accelerators if one not in seen]
    listed = _without_parents(listed, notes)
    devices = _joined([_device(one) for one in listed], functions, notes)
    if not devices:
        first = next((m for m in facts.links if m.vendor == vendor and m.indices), None)
        if first is not None:
            said = f"a row of {first.source}"
            devices = [
                Device(vendor, index, physical=index, evidence=(said,)) for index in first.indices
            ]
    if not devices:
        return _numbered([_device(one) for one in seen])
    devices = _split_stacks(devices, facts, len(seen), notes)
    if gaps := _fills_gaps(devices, seen):
        return _numbered([*devices, *gaps])
    devices = _of_the_processor(devices, seen, facts)
    return _numbered(_with_torch(devices, seen, facts, notes))


def _fills_gaps(devices: list[Device], seen: list[Accelerator]) -> list[Device]:
    """Devices of torch's list that a mere list of names leaves out: both count 0, 1, ..."""
    mine, theirs = {d.physical for d in devices}, {one.index for one in seen}
    bare = all(d.bdf is None and d.uuid is None for d in devices)
    whole = set(range(len(mine) + len(theirs)))
    if not bare or mine & theirs or mine | theirs != whole:
        return []
    return [replace(_device(one), physical=one.index) for one in seen]


def _of_the_processor(
    devices: list[Device], seen: list[Accelerator], facts: HostFacts
) -> list[Device]:
    """Where the processor is itself such a part, its accelerators are what it is."""
    model = facts.cpu.model or ""
    word = next((w for w in unified_names() if re.search(rf"\b{w}\b", model)), None)
    named = next((one for one in seen if word and word in (one.name or "")), None)
    if word is None or named is None:
        return devices
    return [
        replace(d, name=d.name or named.name, arch=d.arch or named.arch, unified_memory=True)
        for d in devices
    ]


def _true_vendor(one: Accelerator, pci: Iterable[PciDevice], notes: list[str]) -> Accelerator:
    """A tool may speak with another vendor's face; the bus does not."""
    function = next((p for p in pci if one.bdf and p.bdf == one.bdf), None)
    row = vendor_of(function) if function else None
    if row is None or row.adapter == one.vendor:
        return one
    notes.append(
        f"{one.source} speaks of {one.bdf} as {one.vendor}, and the bus says {row.name}: "
        "the bus is believed"
    )
    return replace(one, vendor=row.adapter)


def _device(one: Accelerator) -> Device:
    torch = one.source.startswith(_TORCH)
    return Device(
        one.vendor,
        one.index if one.logical is None else one.logical,
        name=one.name,
        arch=one.arch,
        bdf=one.bdf,
        uuid=one.uuid,
        physical=None if torch or one.source.startswith(_LISTS) else one.index,
        card=one.card,
        die=one.die,
        partition=one.partition,
        memory_total_bytes=one.memory_total_bytes or _of_profile(one.partition),
        memory_used_bytes=one.memory_used_bytes,
        integrated=one.integrated,
        unified_memory=one.unified_memory,
        numa_node=one.numa_nodes[0] if len(one.numa_nodes) == 1 else None,
        driver=one.driver,
        visible=True if torch else None,
        reported=one,
        evidence=(f"{one.source} lists it as number {one.index}",),
    )


def _of_profile(partition: str | None) -> int | None:
    """The memory in the name of a MIG profile, such as "1g.10gb"."""
    size = re.search(r"^\d\S*g\.(\d+)gb", partition or "")
    return int(size[1]) << 30 if size else None


def _is_instance(one: Accelerator) -> bool:
    return (one.partition or "").startswith(("GI ", *"1234567"))


def _without_parents(listed: list[Accelerator], notes: list[str]) -> list[Accelerator]:
    """A GPU that is split into MIG instances runs nothing itself: the instances are devices."""
    parents = {one.index for one in listed if _is_instance(one)}
    split = [one for one in listed if not _is_instance(one) and one.index in parents]
    if split:
        notes.append(
            f"{len(split)} GPU(s) are split by MIG: each instance is a device, the whole is none"
        )
    whole = {one.index: one for one in split}
    return [
        _of_its_gpu(one, whole[one.index]) if _is_instance(one) and one.index in whole else one
        for one in listed
        if one not in split
    ]


def _of_its_gpu(one: Accelerator, gpu: Accelerator) -> Accelerator:
    """An instance where its GPU is; it has no bus address of its own."""
    return replace(
        one,
        arch=one.arch or gpu.arch,
        numa_nodes=one.numa_nodes or gpu.numa_nodes,
        cpus=one.cpus or gpu.cpus,
        cpus_truncated=one.cpus_truncated or gpu.cpus_truncated,
    )


def _joined(devices: list[Device], functions: list[PciDevice], notes: list[str]) -> list[Device]:
    placed = {device.bdf for device in devices}
    at = {function.bdf: function for function in functions}
    found = [_at(device, at[device.bdf]) if device.bdf in at else device for device in devices]
    free = [function for function in functions if function.bdf not in placed]
    open_ = [device for device in found if device.bdf is None]
    for integrated in (False, True):
        kind = [one for one in open_ if bool(_integrated(one)) is integrated]
        places = [one for one in free if is_integrated(one) is integrated]
        if len(kind) == len(places) == 1:
            found[found.index(kind[0])] = _at(kind[0], places[0])
        elif kind and places:
            if len(places) != len(kind):
                notes.append(
                    f"the bus has {len(places)} {VENDORS[kind[0].vendor].name} devices, "
                    f"{kind[0].reported.source if kind[0].reported else 'a tool'} lists "
                    f"{len(kind)} "
                    "and not where they are: they cannot be joined"
                )
        elif places and not kind:
            found += [_from_bus(one) for one in places]
    return found


def _from_bus(pci: PciDevice) -> Device:
    row = vendor_of(pci)
    assert row is not None
    return _at(Device(row.adapter, -1), pci)


def _at(device: Device, pci: PciDevice) -> Device:
    return replace(
        device,
        bdf=pci.bdf,
        pci_id=f"{pci.vendor}:{pci.device}",
        numa_node=device.numa_node if pci.numa_node is None else pci.numa_node,
        driver=pci.driver or device.driver,
        integrated=True if is_integrated(pci) else device.integrated,
        evidence=(*device.evidence, str(pci)),
    )


def _split_stacks(
    devices: list[Device], facts: HostFacts, seen: int, notes: list[str]
) -> list[Device]:
    """Cards of two stacks are two devices each, unless the runtime is told to keep them whole."""
    whole = [d for d in devices if d.die is None and _two_stacks(d)]
    if not whole or len({d.bdf for d in whole if d.bdf}) < sum(1 for d in whole if d.bdf):
        return devices
    how = facts.variable("ZE_FLAT_DEVICE_HIERARCHY")
    if (how or "FLAT").upper() == "COMPOSITE" or seen == len(devices):
        notes.append("a card of two stacks is one device under ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE")
        return devices
    notes.append(
        "each stack of a Max 1550 is a device of half the card's memory "
        f"(ZE_FLAT_DEVICE_HIERARCHY is {how or 'not set, which is FLAT'})"
    )
    split: list[Device] = []
    for device in devices:
        if device not in whole:
            split.append(device)
            continue
        half = device.memory_total_bytes // 2 if device.memory_total_bytes else None
        split += [
            replace(device, index=2 * max(device.index, 0) + die, die=die, memory_total_bytes=half)
            for die in (0, 1)
        ]
    return split


def _two_stacks(device: Device) -> bool:
    return device.pci_id in two_stacks() or re.search(r"\bMax 1550", device.name or "") is not None


def _torch_serves(vendor: str, facts: HostFacts) -> bool:
    """Whether the torch build's count of devices can be about this vendor's."""
    torch = facts.torch
    if torch is None:
        return False
    row = VENDORS.get(vendor)
    kind = {"cuda": torch.cuda and not torch.hip, "hip": torch.hip, "xpu": torch.xpu}
    return bool(row and kind.get(row.build or ""))


def _with_torch(
    devices: list[Device], seen: list[Accelerator], facts: HostFacts, notes: list[str]
) -> list[Device]:
    """What torch told of the visible devices, where it is plain which these are."""
    torch, reported = facts.torch, len(seen)
    counted = (torch.visible_devices if torch else None) or 0
    count = max(reported, counted if _torch_serves(devices[0].vendor, facts) else 0)
    if not count:
        return devices
    discrete = [one for one in devices if not _integrated(one)] or devices
    title = discrete[0].vendor_name
    names = ", ".join(dict.fromkeys(one.name for one in seen if one.name))
    if count < len(discrete):
        if reported == 1 and not counted:  # an error, or a list of the first alone, names one
            return devices
        notes.append(
            f"torch sees {count} of {len(discrete)} {title} devices{f' ({names})' * bool(names)}; "
            "the report does not say which: compare UUIDs or bus addresses, not rows"
        )
        return devices
    if count > len(discrete):
        notes.append(
            f"torch sees {count} {title} devices, and the tools list only {len(discrete)}"
        )
        return devices
    kinds = {(one.name, one.arch, one.memory_total_bytes) for one in seen}
    if len(kinds) != 1:
        return [replace(d, visible=True) if d in discrete else d for d in devices]
    ((name, arch, memory),) = kinds
    return [
        replace(
            d,
            name=d.name or name,
            arch=d.arch or arch,
            memory_total_bytes=d.memory_total_bytes or memory,
            visible=True,
            evidence=(*d.evidence, f"torch sees {count} of them, all alike"),
        )
        if d in discrete
        else d
        for d in devices
    ]


def _numbered(devices: list[Device]) -> list[Device]:
    """Numbers that a program can use: the tool's own, if each device has one, else by place."""
    known = [device.reported and device.reported.logical is not None for device in devices]
    own = [d.index for d in devices]
    by_place = any(d.vendor in VENDORS and VENDORS[d.vendor].counted_by_place for d in devices)
    direct = not by_place and all(d.physical is not None or d.visible for d in devices)
    if len(set(own)) == len(own) and (all(known) or direct) and min(own, default=0) >= 0:
        return sorted(devices, key=lambda d: d.index)
    ordered = sorted(devices, key=_place)
    return [replace(device, index=i) for i, device in enumerate(ordered)]


def _place(device: Device) -> tuple[bool, bool, int, str, int, str]:
    return (
        device.physical is None,
        bool(_integrated(device)),
        device.physical or 0,
        device.bdf or "",
        device.die or 0,
        device.uuid or "",
    )


def _integrated(device: Device) -> bool | None:
    if device.integrated is not None:
        return device.integrated
    names, row = _INTEGRATED_NAMES.get(device.vendor), VENDORS.get(device.vendor)
    if names and names.search(device.name or ""):
        return True
    if row and (device.arch or "").split(":")[0] in row.integrated.archs:
        return True
    return None


def _by_nodes(
    nodes: tuple[DeviceNode, ...], vendors: Iterable[str], notes: list[str]
) -> list[Device]:
    """Numbered nodes of a vendor of whom nothing else told; nodes that others share prove none."""
    paths = {node.path for node in nodes}
    notes += _shared_nodes(paths, vendors)
    found: list[Device] = []
    for row in VENDORS.values():
        if row.adapter in vendors or not row.numbered or row.numbered[0].startswith("/dev/accel"):
            continue
        head = re.escape(row.numbered[0]).replace(r"\{n\}", r"(\d+)")
        numbers = sorted(int(m[1]) for path in paths if (m := re.fullmatch(head, path)))
        found += [
            Device(
                row.adapter,
                place,
                physical=number,
                evidence=(f"its device node {row.numbered[0].format(n=number)}",),
            )
            for place, number in enumerate(numbers)
        ]
    return found


def _shared_nodes(paths: set[str], vendors: Iterable[str]) -> Iterator[str]:
    """Control nodes that several vendors' drivers make, where no device of theirs is reported."""
    owners: dict[str, list[Vendor]] = {}
    for row in VENDORS.values():
        for path in row.control:
            owners.setdefault(path, []).append(row)
    for path, rows in owners.items():
        if len(rows) < 2 or path not in paths or {row.adapter for row in rows} & set(vendors):
            continue
        own = [
            (row, other)
            for row in rows
            for other in row.control
            if other != path and other in paths
        ]
        owner = " or ".join(f"{row.name}'s" for row in rows)
        if own:
            owner = f"{own[0][0].name}'s, for {own[0][1]} is there"
        yield f"{path} exists, but nothing reports a device behind it: {owner}"


def _completed(
    device: Device, nodes: tuple[DeviceNode, ...], system_bytes: int | None, split: bool
) -> Device:
    row = VENDORS.get(device.vendor)
    unified = device.pci_id in unified_pci() or any(
        re.search(rf"\b{word}\b", device.name or "") for word in unified_names()
    )
    # the integrated parts of some vendors, and those of the table, are what their box is for
    never = row is not None and row.never_integrated
    integrated = False if unified or never else _integrated(device)
    memory = device.memory_total_bytes
    unified = unified or (never and device.integrated is True)
    number = _node_number(device, row, split)
    return replace(
        device,
        integrated=integrated,
        unified_memory=True if unified or integrated else device.unified_memory,
        memory_total_bytes=system_bytes if integrated and memory is None else memory,
        nodes=_own_nodes(row, number, nodes),
        node_number=number,
    )


def _node_number(device: Device, row: Vendor | None, split: bool) -> int | None:
    """The driver counts devices: where cards are split into dies, the card's number is not it."""
    if row is None or not row.numbered or row.own_numbers:
        return None
    told = device.reported.node_number if device.reported else None
    if told is not None:
        return told
    return device.index if split or device.physical is None else device.physical


def _own_nodes(
    row: Vendor | None, number: int | None, nodes: tuple[DeviceNode, ...]
) -> tuple[DeviceNode, ...]:
    if row is None or number is None:
        return ()
    wanted = {template.format(n=number) for template in row.numbered}
    return tuple(node for node in nodes if node.path in wanted)
