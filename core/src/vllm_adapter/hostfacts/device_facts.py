"""Host facts about accelerators: what a vendor's tool, a driver or torch said of each.

A device is one schedulable unit: a card of two dies is two of them. Sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process that holds a device. `pid` is of the namespace that the tool saw."""

    pid: int | None = None
    name: str | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """How a device is now. `status` is the tool's own word, such as "OK" or "Alarm".

    `throttle_reasons` are active ones, in the tool's words. `errors` are sentences: a device lost,
    uncorrectable memory errors.
    """

    status: str | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_cap_w: float | None = None
    utilization_percent: float | None = None
    clock_mhz: float | None = None
    clock_max_mhz: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device, as `source` reported it ("nvidia-smi", "npu-smi info", "torch", "lspci").

    `vendor` is who made the silicon, by `known_vendors`' adapter names ("cuda", "rocm", "xpu",
    "ascend", "gaudi", "musa", "metax", ...). `index` is the one in the source's own numbering,
    `logical` the one a program uses, where they differ; `card` and `die` place it. `bdf` is as in
    `PciDevice`. `arch` is "sm_90", "gfx942", "910b3", where the source says so. `cpus` is the
    affinity that the tool printed; `cpus_truncated` says that the text was cut, so that they must
    not be used. `numa_nodes` are the nodes the tool named; only a single one is a location.
    `partition` is a MIG profile or a compute partition. `compute_units` are those of this device
    now: streaming multiprocessors, compute units, Xe-cores, cube cores.
    """

    vendor: str
    index: int
    source: str
    name: str | None = None
    logical: int | None = None
    card: int | None = None
    die: int | None = None
    bdf: str | None = None
    uuid: str | None = None
    arch: str | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    integrated: bool | None = None
    unified_memory: bool | None = None
    numa_nodes: tuple[int, ...] = ()
    memory_nodes: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()
    cpus_truncated: bool = False
    partition: str | None = None
    driver: str | None = None
    health: Health = Health()
    processes: tuple[DeviceProcess, ...] = ()
    compute_units: int | None = None


@dataclass(frozen=True, slots=True)
class Driver:
    """A version of a driver, firmware or toolkit, and where it was read.

    `component`: "nvidia" (the kernel driver), "nvidia-smi", "nvml", "cuda" (the highest runtime
    that the driver serves), "cuda-toolkit", "windows" (a WSL host's), "amdgpu", "rocm", "xe",
    "i915", "level-zero", "ascend" (driver), "ascend-firmware", "cann", "habanalabs",
    "habanalabs-firmware", "mtgpu", "musa", "metax", "maca", "cambricon", "miopen",
    "compute-runtime" (Intel's OpenCL), and "ppu", "kunlunxin", "iluvatar" of tools with NVIDIA's
    face.
    """

    component: str
    version: str
    source: str


@dataclass(frozen=True, slots=True)
class Link:
    """One directed cell of a matrix, as printed: "NV18", "PIX", "XGMI", "HCCS", "XL24".

    `weight`, `hops` and `bandwidth_mb_s` (its maximum) where the tool prints such tables.
    """

    first: str
    second: str
    text: str | None = None
    weight: int | None = None
    hops: int | None = None
    bandwidth_mb_s: int | None = None


@dataclass(frozen=True, slots=True)
class LinkMatrix:
    """A tool's table of links between devices, and between devices and network cards.

    `kind` is "links", or "peer" for a table of peer access (cells such as OK, GNS, NS).
    `devices` and `nics` are labels in the order of the header, whether or not they have a row;
    `vendor` is as in `Accelerator`; `indices` are the devices' numbers there. `nic_names` are
    (label, name) of the legend. `notes` are sentences about what could not be trusted: missing
    rows, a capped list of network cards.
    """

    source: str
    vendor: str
    devices: tuple[str, ...]
    indices: tuple[int, ...]
    kind: str = "links"
    nics: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    nic_names: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
