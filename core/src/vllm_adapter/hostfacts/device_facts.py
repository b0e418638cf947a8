"""Host facts about accelerators: what a vendor's tool, a driver or torch said of each.

A device is one schedulable unit: a card of two dies is two of them. Sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process that holds a device."""

    pid: int | None = None
    """The process's number, of the namespace that the tool saw."""
    name: str | None = None
    """The process's name or path."""
    memory_bytes: int | None = None
    """What it holds of the device's memory."""


@dataclass(frozen=True, slots=True)
class Health:
    """How a device is now."""

    status: str | None = None
    """The tool's own word, such as "OK" or "Alarm"."""
    temperature_c: float | None = None
    """Degrees Celsius."""
    power_w: float | None = None
    """Watts drawn now."""
    power_cap_w: float | None = None
    """The power limit in watts."""
    utilization_percent: float | None = None
    """How busy its compute units are."""
    clock_mhz: float | None = None
    """The clock of its compute units now."""
    clock_max_mhz: float | None = None
    """The highest clock of its compute units."""
    throttle_reasons: tuple[str, ...] = ()
    """Active ones, in the tool's words."""
    errors: tuple[str, ...] = ()
    """Sentences: a device lost, uncorrectable memory errors."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device, as one source reported it."""

    vendor: str
    """Who made the silicon, by `known_vendors`' adapter names ("cuda", "rocm", "xpu", "ascend",
    "gaudi", "musa", "metax", ...)."""
    index: int
    """Its number in the source's own numbering."""
    source: str
    """What reported it: "nvidia-smi", "npu-smi info", "torch", "lspci"."""
    name: str | None = None
    """What the source calls it, such as "NVIDIA H200"."""
    logical: int | None = None
    """The number that a program uses, where it differs from `index`."""
    card: int | None = None
    """The card that it is on."""
    die: int | None = None
    """Which of its card's dies it is."""
    bdf: str | None = None
    """Its PCI address, as in `PciDevice`."""
    uuid: str | None = None
    """The vendor's UUID."""
    arch: str | None = None
    """Such as "sm_90", "gfx942", "910b3", where the source says so."""
    memory_total_bytes: int | None = None
    """Its own memory."""
    memory_used_bytes: int | None = None
    """What of it is in use."""
    integrated: bool | None = None
    """Whether it is part of the processor."""
    unified_memory: bool | None = None
    """Whether its memory is the system's."""
    numa_nodes: tuple[int, ...] = ()
    """The nodes the tool named; only a single one is a location."""
    memory_nodes: tuple[int, ...] = ()
    """NUMA nodes that are its own memory."""
    cpus: tuple[int, ...] = ()
    """The affinity that the tool printed."""
    cpus_truncated: bool = False
    """Whether the text of `cpus` was cut, so that they must not be used."""
    partition: str | None = None
    """A MIG profile or a compute partition."""
    driver: str | None = None
    """The kernel driver that is bound to it."""
    health: Health = Health()
    """How it is now."""
    processes: tuple[DeviceProcess, ...] = ()
    """Processes that hold it."""
    node_number: int | None = None
    """The number in the name of its device node, where the source says so."""
    compute_units: int | None = None
    """Those of this device now: streaming multiprocessors, compute units, Xe-cores, cube cores."""


@dataclass(frozen=True, slots=True)
class Driver:
    """A version of a driver, firmware or toolkit, and where it was read."""

    component: str
    """What it is the version of: "nvidia" (the kernel driver), "nvidia-smi", "nvml", "cuda" (the
    highest runtime that the driver serves), "cuda-toolkit", "windows" (a WSL host's), "amdgpu",
    "rocm", "xe", "i915", "level-zero", "ascend" (driver), "ascend-firmware", "cann", "habanalabs",
    "habanalabs-firmware", "mtgpu", "musa", "metax", "maca", "cambricon", "miopen",
    "compute-runtime" (Intel's OpenCL), and "ppu", "kunlunxin", "iluvatar" of tools with NVIDIA's
    face."""
    version: str
    """The version as it was printed."""
    source: str
    """The file, library or tool that told it."""


@dataclass(frozen=True, slots=True)
class Link:
    """One directed cell of a matrix, as printed: "NV18", "PIX", "XGMI", "HCCS", "XL24"."""

    first: str
    """The label of the row."""
    second: str
    """The label of the column."""
    text: str | None = None
    """The cell as it was printed."""
    weight: int | None = None
    """The link's weight, where the tool prints such a table."""
    hops: int | None = None
    """The link's hops, where the tool prints such a table."""
    bandwidth_mb_s: int | None = None
    """The link's greatest bandwidth, where the tool prints such a table."""


@dataclass(frozen=True, slots=True)
class LinkMatrix:
    """A tool's table of links between devices, and between devices and network cards."""

    source: str
    """The tool that printed the table."""
    vendor: str
    """Who made the devices, as in `Accelerator`."""
    devices: tuple[str, ...]
    """Labels of devices in the order of the header, whether or not they have a row."""
    indices: tuple[int, ...]
    """The devices' numbers there."""
    kind: str = "links"
    """What the table is of: "links", or "peer" for peer access (cells such as OK, GNS, NS)."""
    nics: tuple[str, ...] = ()
    """Labels of network cards in the order of the header, whether or not they have a row."""
    links: tuple[Link, ...] = ()
    """The cells that could be read."""
    nic_names: tuple[tuple[str, str], ...] = ()
    """(label, name) of the legend."""
    notes: tuple[str, ...] = ()
    """Sentences about what could not be trusted: missing rows, a capped list of network cards."""
