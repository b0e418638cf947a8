"""Vendors whose accelerators we know: how each is recognised, named, seen and hidden.

What differs between vendors is data: one JSON file each in the distribution vllm-adapter-vendors,
with its sources. A field that no source states is None, and users of this table then say so. A new
vendor is one more file; no code asks which vendor it is. Rows are named tuples, since `list`
imports this module, and dataclasses of as many fields would cost it ten milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from vllm_adapter.hostfacts.vendor_files import LazyMapping, documents, once, sections


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


class VisibleDevicesRule(NamedTuple):
    """How a process is made to see some devices only.

    `read` are the variables that the vendor's stack reads, in that order; `set` those to be set,
    of which "{numbers}" stands for the devices; `unset` must not be set beside them. `numbers` are
    the inventory's ("index"), the driver's ("physical"), or known to the runtime alone
    ("logical"): if not reported, `unknown` says how to learn them. `order` is (variable,
    value, who counts) where the runtime counts devices in another order by default.
    `instances` are notes for parts of a device, which go by UUID and one a process: where no UUID
    is reported, and where there are several. `mixed` is a note for boxes with an integrated GPU.
    """

    read: tuple[str, ...] = ()
    set: tuple[tuple[str, str], ...] = ()
    unset: tuple[str, ...] = ()
    note: str | None = None
    numbers: str = "index"
    unknown: str | None = None
    unknown_unset: tuple[str, ...] = ()
    order: tuple[str, str, str] | None = None
    instances: tuple[str, str] | None = None
    mixed: str | None = None


class Integrated(NamedTuple):
    """How a vendor's GPU inside a processor is distinguished from its cards.

    `bus`: all on this bus are; `devices`: PCI ids, of which a star leaves the end open.
    """

    bus: str | None = None
    devices: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()


class Plugin(NamedTuple):
    """The vendor's own plug-in for vLLM, and how it is installed."""

    package: str
    install: str
    source: str


class Vendor(NamedTuple):
    """One vendor's devices. `adapter` is the name that an adapter for them has.

    `has_adapter` is whether this project has that adapter; `plugin` is the vendor's own.
    `pci` is the PCI vendor id, `classes` the first four digits of its accelerators' classes, and
    `products` their device ids, where the class alone does not tell them from other functions.
    `torch_type` is torch's device type, and `build` the runtime of the torch build that serves
    them; `code` is the family of device codes, "sm" or "gfx", `code_floor` the least of them
    that a build has, and `vllm_floor` the least that vLLM's own kernels have.
    `visible` is the variable that limits what a process sees, `limits` how it is
    set, `container_visible` the one that the vendor's container runtime reads. Device nodes:
    `numbered` has one a device, `{n}` being the driver's number of it, which with `own_numbers` is
    another than the tool's (`older` are names from before); `control` are those that all devices
    need; `made_late` are (path, the one beside which it is missed, warning) of nodes that appear
    at first use; `render` says that /dev/dri/renderD* is needed too. `tool` lists the devices.
    `label` is the word for a device in tables. `never_integrated`: its integrated parts are what
    their box is for.
    `counted_by_place`: the tool numbers boards, and a program counts chips by place.
    `derives_from` is the vendor whose stack this one's is, under other names. `drivers` are
    components that nobody else's devices have.
    """

    adapter: str
    name: str
    pci: str | None
    source: str
    classes: tuple[str, ...] = ()
    products: tuple[str, ...] = ()
    torch_type: str | None = None
    build: str | None = None
    code: str | None = None
    code_floor: int = 0
    vllm_floor: int = 0
    visible: str | None = None
    limits: VisibleDevicesRule = VisibleDevicesRule()
    container_visible: str | None = None
    numbered: tuple[str, ...] = ()
    control: tuple[str, ...] = ()
    made_late: tuple[tuple[str, str, str], ...] = ()
    render: bool = False
    tool: str | None = None
    own_numbers: bool = False
    older: tuple[str, ...] = ()
    label: str = "GPU"
    integrated: Integrated = Integrated()
    never_integrated: bool = False
    counted_by_place: bool = False
    derives_from: str | None = None
    drivers: tuple[str, ...] = ()
    has_adapter: bool = False
    plugin: Plugin | None = None


def _vendor(raw: Mapping[str, Any]) -> Vendor:
    pci, torch, nodes = raw["pci"], raw.get("torch", {}), raw.get("nodes", {})
    part, code = raw.get("integrated", {}), torch.get("code", {})
    visible = raw.get("visible", {})
    return Vendor(
        raw["name"],
        raw["vendor"],
        pci.get("vendor"),
        raw["source"],
        tuple(pci.get("classes", ())),
        tuple(pci.get("devices", ())),
        torch.get("type"),
        torch.get("build"),
        code.get("family"),
        code.get("floor", 0),
        code.get("vllm", 0),
        visible.get("variable"),
        _visible(visible),
        visible.get("container"),
        tuple(nodes.get("numbered", ())),
        tuple(nodes.get("control", ())),
        tuple((one["path"], one["beside"], one["warning"]) for one in nodes.get("made_late", ())),
        nodes.get("render", False),
        raw.get("list_command"),
        nodes.get("own_numbers", False),
        tuple(nodes.get("older", ())),
        raw.get("label", "GPU"),
        Integrated(part.get("bus"), tuple(part.get("devices", ())), tuple(part.get("archs", ()))),
        part.get("never", False),
        nodes.get("counted_by_place", False),
        raw.get("derives_from"),
        tuple(raw.get("drivers", {}).get("proof", ())),
        raw["adapter"],
        Plugin(**raw["vllm_plugin"]) if "vllm_plugin" in raw else None,
    )


def _visible(raw: Mapping[str, Any]) -> VisibleDevicesRule:
    variable, order, notes = raw.get("variable"), raw.get("order"), raw.get("instances")
    first = ((order["variable"], order["value"]),) if order else ()
    own = ((variable, "{numbers}"),) if variable else ()
    return VisibleDevicesRule(
        tuple(raw.get("read", (variable,) if variable else ())),
        (*first, *own, *raw.get("also", {}).items()),
        tuple(raw.get("unset", ())),
        raw.get("note"),
        raw.get("numbers", "index"),
        raw.get("unknown"),
        tuple(raw.get("unknown_unset", ())),
        (order["variable"], order["value"], order["counter"]) if order else None,
        (notes["none"], notes["several"]) if notes else None,
        raw.get("mixed"),
    )


VENDORS: Final[Mapping[str, Vendor]] = LazyMapping(
    lambda: {raw["name"]: _vendor(raw) for raw in documents()}
)
"""By the adapter's name, in the order of rank."""
BY_PCI: Final[Mapping[str, Vendor]] = LazyMapping(
    lambda: {row.pci: row for row in VENDORS.values() if row.pci}
)
"""By the PCI vendor id."""


@once
def unified_names() -> tuple[str, ...]:
    """Words in names of accelerators that share the CPU's memory, and are what the box is for."""
    return tuple(word for _, words in sections("unified", "names") for word in words)


@once
def unified_pci() -> frozenset[str]:
    """The same by "vendor:device"."""
    return frozenset(
        f"{VENDORS[name].pci}:{device}"
        for name, devices in sections("unified", "devices")
        for device in devices
    )


def vendor_of(function: PciFunction) -> Vendor | None:
    """Whose accelerator or graphics this PCI function is; None for anything else."""
    row = BY_PCI.get(function.vendor)
    if row is None or (function.class_code[:6] not in row.classes and not row.products):
        return None
    return row if not row.products or function.device in row.products else None


def is_integrated(function: PciFunction) -> bool:
    """Whether a GPU is part of the processor."""
    row = BY_PCI.get(function.vendor)
    if row is None:
        return False
    if row.integrated.bus is not None:
        return function.bdf.split(":")[1] == row.integrated.bus
    return any(
        function.device.startswith(one[:-1]) if one.endswith("*") else function.device == one
        for one in row.integrated.devices
    )


def adapters_for(devices: Iterable[F]) -> dict[str, tuple[str, F]]:
    """For each adapter name that the hardware calls for: the vendor, and one such device."""
    found: dict[str, tuple[str, F]] = {}
    for device in devices:
        row = vendor_of(device)
        if row is not None and is_integrated(device) is False:
            found.setdefault(row.adapter, (row.name, device))
    return found


@once
def by_alias() -> dict[str, str]:
    """The adapter's name by the vendor's other names, in small letters."""
    return {alias: name for name, words in sections("aliases") for alias in words}


@once
def variable_heads() -> tuple[str, ...]:
    """What the names of the vendors' environment variables begin with."""
    own = [head for _, heads in sections("environment") for head in heads]
    visible = [name for row in VENDORS.values() for name in row.limits.read]
    runtimes = [row.container_visible for row in VENDORS.values() if row.container_visible]
    return tuple(dict.fromkeys((*own, *visible, *runtimes)))


@once
def own_packages() -> frozenset[str]:
    """Normalised names of the vendors' Python packages."""
    listed = [name for _, names in sections("packages") for name in names]
    torch = [name for _, names in sections("torch", "packages") for name in names]
    plugins = [row.plugin.package for row in VENDORS.values() if row.plugin]
    return frozenset((*listed, *torch, *plugins))


@once
def node_names() -> tuple[str, ...]:
    """Every device node that a vendor's driver makes; {n} stands for a number."""
    return tuple(
        dict.fromkeys(
            path
            for _, nodes in sections("nodes")
            for key in ("numbered", "older", "control", "others")
            for path in nodes.get(key, ())
        )
    )


@once
def node_globs() -> tuple[str, ...]:
    """Shell patterns that find the vendors' nodes on a machine."""
    wide = [glob for _, globs in sections("nodes", "globs") for glob in globs]
    heads = [glob.removesuffix("*") for glob in wide]  # found by one listing of their folder
    rest = [path for path in node_names() if not any(map(path.startswith, heads))]
    return tuple(dict.fromkeys((*wide, *(path.replace("{n}", "[0-9]*") for path in rest))))


def vendors_of_program(program: str) -> frozenset[str]:
    """The vendors that have a tool of this name."""
    return frozenset(
        name for name, every in sections("tools") for tool in every if tool["program"] == program
    )


def matches_build(entries: Iterable[Mapping[str, Any]], build: str) -> bool:
    """Whether a manifest's entries ask for devices that this build of torch serves."""
    ids = [entry.get("pci_vendor") for entry in entries]
    return any(
        isinstance(one, str) and one in BY_PCI and BY_PCI[one].build == build for one in ids
    )


@once
def faces() -> dict[str, str]:
    """Words by which torch's modules and messages name a vendor's devices: the vendor."""
    return {face: name for name, words in sections("torch", "faces") for face in words}


def derives(vendor: str, other: str) -> bool:
    """Whether a vendor's stack is another's under other names: its tools are read alike."""
    row = VENDORS.get(vendor)
    return row is not None and row.derives_from == other


def install_command(adapter: str) -> str | None:
    """How an adapter of that name is installed; None for a vendor of whom this project has none.

    A package of that name may be there all the same, and be anybody's.
    """
    row = VENDORS.get(adapter)
    if row is not None and not row.has_adapter:
        return None
    return f"pip install {_distribution(adapter)}"


def distribution_of(adapter: str) -> str | None:
    """The distribution of this project's adapter of that name; None where it has none."""
    row = VENDORS.get(adapter)
    return _distribution(adapter) if row is not None and row.has_adapter else None


def _distribution(adapter: str) -> str:
    return f"vllm-adapter-{adapter.replace('_', '-')}"


def how_to_serve(vendor: str) -> str:
    """What serves a vendor's devices: our adapter, else the vendor's own plug-in for vLLM."""
    command, row = install_command(vendor), VENDORS.get(vendor)
    if command or row is None:
        return command or ""
    if row.plugin:
        return f"use {row.name}'s own vLLM plug-in, {row.plugin.package}: {row.plugin.install}"
    return f"ask {row.name} for its own vLLM: no plug-in of this vendor is known"


def not_served(vendor: str) -> str:
    """The state of a device without an adapter, for a table."""
    state = "not installed" if install_command(vendor) else "none in this project"
    return f"{state}: {how_to_serve(vendor)}"
