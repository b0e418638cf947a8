"""What drivers, toolkits and torch builds have to do with each other: tables and their readers.

The tables are in the vendors' files, with their sources. Nobody compares a driver with the
toolkit's own driver to say that it is too old: since CUDA 11 a process starts with the minimum of
the runtime's *major* version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from vllm_adapter.hostfacts.facts import Driver, TorchBuild
from vllm_adapter.hostfacts.vendor_files import LazyMapping, once, sections
from vllm_adapter_doctor.vendor_data.driver_versions import begins_with, older, parse_version

_CUDA: Final = "cuda"
_HIP: Final = "hip"


def toolkit_table(runtime: str, table: str) -> Mapping[str, Any]:
    """One table of the toolkit that brings a runtime of torch ("cuda", "hip").

    `minimum`: runtime, by the first parts of its version: the oldest Linux driver that starts it;
    `packed`: the driver in a toolkit's installer (from CUDA 13.4 on it has no number); `noted`: an
    older one that its release notes ask for; `branches`: the highest runtime that a driver's
    branch reports; `archs`: LLVM targets of ROCm's matrix; `drivers`: releases of AMD's driver
    package that the matrix names, up to 6.3 those of two releases around it.
    """
    for _, toolkit in sections("drivers", "toolkit"):
        if toolkit["runtime"] == runtime:
            found: Mapping[str, Any] = toolkit.get(table, {})
            return found
    return {}


NVIDIA_MINIMUM: Final[Mapping[str, str]] = LazyMapping(lambda: toolkit_table(_CUDA, "minimum"))


@dataclass(frozen=True, slots=True)
class TorchWheel:
    """The archs in a torch build: minor releases `first` to `last`, `local` the tag after +."""

    first: tuple[int, int]
    last: tuple[int, int]
    local: tuple[str, ...]
    archs: str
    machine: str = "x86_64"
    sure: bool = True


def _wheel(raw: Mapping[str, Any]) -> TorchWheel:
    first, last = (tuple(map(int, text.split("."))) for text in raw["torch"])
    return TorchWheel(
        (first[0], first[1]),
        (last[0], last[1]),
        tuple(raw["local"]),
        raw["archs"],
        raw.get("machine", "x86_64"),
        raw.get("sure", True),
    )


@once
def wheels() -> tuple[TorchWheel, ...]:
    """Every official build. Archs are compute capabilities; +120 is PTX."""
    return tuple(
        _wheel(raw) for _, every in sections("drivers", "wheels", "builds") for raw in every
    )


@dataclass(frozen=True, slots=True)
class DriverFloor:
    """The least driver branch that serves any runtime which torch is built with."""

    component: str
    branch: int
    runtime: str
    next_step: str
    source: str


DRIVER_FLOORS: Final[Mapping[str, DriverFloor]] = LazyMapping(
    lambda: {vendor: DriverFloor(**raw) for vendor, raw in sections("drivers", "floor")}
)
"""By the adapter's name."""


@once
def without_version() -> frozenset[str]:
    """Drivers whose module in the kernel's own tree declares no version."""
    return frozenset(name for _, names in sections("drivers", "in_tree") for name in names)


def on_windows(component: str) -> str | None:
    """What a driver is called where it is the Windows host's, as under WSL."""
    for _, raw in sections("drivers", "windows"):
        if raw["component"] == component:
            return str(raw["on_windows"])
    return None


_GPU: Final = re.compile(r"sm_(?P<number>[0-9]{2,3})(?P<own>[af]?)\Z")


def capability_number(arch: str) -> int | None:
    """86 of "sm_86"; None for another family's arch."""
    found = _GPU.match(arch)
    return int(found["number"]) if found else None


def decode_cuda(number: int) -> str:
    """The CUDA version in an integer of the CUDA API: 11040 is "11.4", 12080 is "12.8"."""
    return f"{number // 1000}.{number % 1000 // 10}"


def cuda_of_driver(driver: str, runtime: str = _CUDA) -> str | None:
    """The highest runtime that a driver serves; None for a branch that is not known."""
    found = parse_version(driver)
    return toolkit_table(runtime, "branches").get(str(found[0][1])) if found else None


def full_driver(toolkit: str, runtime: str = _CUDA) -> str | None:
    """The driver with which all of a toolkit works, by its release notes, else its installer.

    "12.8" means its first release. None where the table has no such toolkit.
    """
    exact = toolkit if toolkit.count(".") >= 2 else f"{toolkit}.0"
    return toolkit_table(runtime, "noted").get(exact) or toolkit_table(runtime, "packed").get(
        exact
    )


_RUNTIME_KINDS: Final = ("cuda", "hip", "xpu")
_LOCAL_CUDA: Final = re.compile(r"cu(\d{2})(\d)")
_BY_BRANCH: Final = 100
"""A driver with a smaller number counts otherwise than by branches."""
_DEFAULTS: Final = {11: "13.0", 12: "13.0", 13: "13.0", 14: "13.2"}
"""CUDA of the default (PyPI) build of torch 2.N: pytorch#172663, #190355."""


def runtime_of(torch: TorchBuild | None) -> tuple[str | None, str | None]:
    """(kind, version) of the runtime that torch was built with: "cuda", "hip" or "xpu"."""
    if torch is None:
        return None, None
    for kind in _RUNTIME_KINDS:
        version = getattr(torch, kind)
        if version:
            return kind, version
    built = _LOCAL_CUDA.fullmatch(torch.local or "")
    if built:
        return _CUDA, f"{built[1]}.{built[2]}"
    plain = re.match(r"2\.(\d+)", torch.version or "")
    if plain and not torch.local and int(plain[1]) in _DEFAULTS:
        return _CUDA, _DEFAULTS[int(plain[1])]
    return None, None


def is_older(driver: Driver, than: str) -> bool:
    """Whether a driver is older than a release of it; a version that is none never is.

    Numbers of a Windows driver are compared by branch alone.
    """
    version, bound = parse_version(driver.version), parse_version(than)
    if not version or not bound:
        return False
    if driver.component in _windows():
        return _BY_BRANCH <= version[0][1] < bound[0][1]
    return older(version, bound)


@once
def _windows() -> frozenset[str]:
    return frozenset(str(raw["on_windows"]) for _, raw in sections("drivers", "windows"))


def runtime_minimums(vendor: str) -> tuple[Mapping[str, Any], ...]:
    """Rows as a descriptor has them: the oldest driver of each runtime of the vendor's toolkit."""
    return tuple(
        {"runtime": toolkit["runtime"], "version": version, "minimum": driver}
        for name, toolkit in sections("drivers", "toolkit")
        if name == vendor
        for version, driver in toolkit.get("minimum", {}).items()
    )


def oldest_driver(vendor: str) -> str | None:
    """The driver from which on a whole major version of the vendor's runtime starts.

    None for a vendor without a floor.
    """
    floor = DRIVER_FLOORS.get(vendor)
    rows = runtime_minimums(vendor) if floor else ()
    known = [r["minimum"] for r in rows if floor and begins_with(r["minimum"], str(floor.branch))]
    return max(known, key=lambda text: parse_version(text) or (), default=None)


def minimum_driver(cuda: str) -> str | None:
    """The oldest NVIDIA driver that starts a CUDA runtime; None for one that is not known."""
    known = [first for first in NVIDIA_MINIMUM if begins_with(cuda, first)]
    return NVIDIA_MINIMUM[max(known, key=len)] if known else None


def wheel_archs(torch: str, machine: str = "x86_64") -> tuple[tuple[str, ...], bool] | None:
    """The archs of an official torch wheel such as "2.11.0+cu128", and whether that is sure.

    They are as `torch.cuda.get_arch_list` has them. None where no such wheel is known.
    """
    version, _, local = torch.partition("+")
    found = parse_version(version)
    if found is None or len(found) < 2:
        return None
    minor = (found[0][1], found[1][1])
    for wheel in wheels():
        named = wheel.machine == machine and local in wheel.local
        if named and wheel.first <= minor <= wheel.last:
            return _archs(wheel), wheel.sure
    return None


def _archs(wheel: TorchWheel) -> tuple[str, ...]:
    return tuple(
        f"compute_{arch[1:]}" if arch[0] == "+" else f"sm_{arch}" for arch in wheel.archs.split()
    )


def rocm_targets(rocm: str) -> tuple[str, ...] | None:
    """The targets that AMD supports in a ROCm; None for one whose matrix was not read.

    Builds for others exist: a target that is missing here is no proof that nothing runs.
    """
    known = toolkit_table(_HIP, "archs")
    rows = [first for first in known if begins_with(rocm, first)]
    return tuple(known[rows[0]].split()) if rows else None


def serves(built: tuple[str, ...], arch: str) -> bool | None:
    """Whether code for `built` archs runs on a device of `arch`; None where the rule is unknown.

    NVIDIA: machine code runs on the same major with an equal or higher minor, also that of a
    family ("sm_100f"); code of an arch alone ("sm_100a") on that one; PTX on any equal or later
    arch. AMD: the very same target.
    """
    if not built:
        return None
    if arch.startswith("gfx"):
        if any(one.endswith("-generic") for one in built):
            return arch in built or None
        targets = {one.partition(":")[0] for one in built if one.startswith("gfx")}
        return arch in targets if targets else None
    device = _GPU.match(arch)
    if device is None:
        return None
    own = int(device["number"])
    if not any(one.startswith(("sm_", "compute_")) for one in built):
        return None
    for one in built:
        if one.startswith("compute_") and one[8:].isdecimal() and int(one[8:]) <= own:
            return True
        code = _GPU.match(one)
        if code is None:
            continue
        number, family = int(code["number"]), code["own"] != "a"
        if number == own or (family and number // 10 == own // 10 and number <= own):
            return True
    return False
