"""What drivers, toolkits and torch builds have to do with each other: tables and their readers.

NVIDIA: the CUDA Compatibility guide (2026-09), installer file names and release notes of CUDA 11.2
to 13.4. torch: RELEASE.md and the build scripts `.ci/manywheel` of 2.8 to 2.14; rows that are not
`sure` are from a public table of builds. AMD: the ROCm compatibility matrices 6.0 to 7.2.
Nobody compares a driver with the toolkit's own driver to say that it is too old: since CUDA 11 a
process starts with the minimum of the runtime's *major* version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from vllm_adapter.driver_versions import begins_with, parse_version

NVIDIA_MINIMUM: Final = {
    "13": "580",
    "12": "525.60.13",
    "11": "450.80.02",
    "11.0": "450.36.06",
    "10.2": "440.33",
    "10.1": "418.39",
    "10.0": "410.48",
}
"""CUDA runtime, by the first parts of its version: the oldest Linux driver that starts it."""

PACKED: Final = {
    "13.3.1": "610.43.02",
    "13.3.0": "610.43.02",
    "13.2.2": "595.71.05",
    "13.2.1": "595.58.03",
    "13.2.0": "595.45.04",
    "13.1.2": "590.48.01",
    "13.1.1": "590.48.01",
    "13.1.0": "590.44.01",
    "13.0.3": "580.126.20",
    "13.0.2": "580.95.05",
    "13.0.1": "580.82.07",
    "13.0.0": "580.65.06",
    "12.9.2": "575.57.08",
    "12.9.1": "575.57.08",
    "12.9.0": "575.51.03",
    "12.8.2": "570.211.01",
    "12.8.1": "570.124.06",
    "12.8.0": "570.86.10",
    "12.6.3": "560.35.05",
    "12.6.2": "560.35.03",
    "12.6.1": "560.35.03",
    "12.6.0": "560.28.03",
    "12.5.1": "555.42.06",
    "12.5.0": "555.42.02",
    "12.4.1": "550.54.15",
    "12.4.0": "550.54.14",
    "12.3.2": "545.23.08",
    "12.3.1": "545.23.08",
    "12.3.0": "545.23.06",
    "12.2.2": "535.104.05",
    "12.2.1": "535.86.10",
    "12.2.0": "535.54.03",
    "12.1.1": "530.30.02",
    "12.1.0": "530.30.02",
    "12.0.1": "525.85.12",
    "12.0.0": "525.60.13",
    "11.8.0": "520.61.05",
    "11.7.1": "515.65.01",
    "11.7.0": "515.43.04",
    "11.6.2": "510.47.03",
    "11.6.1": "510.47.03",
    "11.6.0": "510.39.01",
    "11.5.2": "495.29.05",
    "11.5.1": "495.29.05",
    "11.5.0": "495.29.05",
    "11.4.4": "470.82.01",
    "11.4.3": "470.82.01",
    "11.4.2": "470.57.02",
    "11.4.1": "470.57.02",
    "11.4.0": "470.42.01",
    "11.3.1": "465.19.01",
    "11.3.0": "465.19.01",
    "11.2.2": "460.32.03",
    "11.2.1": "460.32.03",
    "11.2.0": "460.27.04",
}
"""CUDA toolkit: the Linux driver in its installer. From 13.4 on an installer has no number."""

NOTED: Final = {"12.8.0": "570.26", "12.2.1": "535.86.09", "11.7.1": "515.48.07"}
"""Toolkits whose release notes ask for an older driver than the packed one."""

BRANCHES: Final = {
    450: "11.0",
    455: "11.1",
    460: "11.2",
    465: "11.3",
    470: "11.4",
    495: "11.5",
    510: "11.6",
    515: "11.7",
    520: "11.8",
    525: "12.0",
    530: "12.1",
    535: "12.2",
    545: "12.3",
    550: "12.4",
    555: "12.5",
    560: "12.6",
    565: "12.7",
    570: "12.8",
    575: "12.9",
    580: "13.0",
    590: "13.1",
    595: "13.2",
    610: "13.3",
}
"""NVIDIA driver branch: the highest CUDA that it reports."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """The archs in a torch build: minor releases `first` to `last`, `local` the tag after +."""

    first: tuple[int, int]
    last: tuple[int, int]
    local: tuple[str, ...]
    archs: str
    machine: str = "x86_64"
    sure: bool = True


WHEELS: Final = (
    Wheel((2, 5), (2, 5), ("cu118",), "37 50 60 61 70 75 80 86 90", sure=False),
    Wheel((2, 5), (2, 5), ("cu121", "cu124"), "50 60 61 70 75 80 86 90 90a", sure=False),
    Wheel((2, 6), (2, 6), ("cu118",), "37 50 60 70 75 80 86 90", sure=False),
    Wheel((2, 6), (2, 7), ("cu124", "cu126"), "50 60 70 75 80 86 90", sure=False),
    Wheel((2, 7), (2, 7), ("cu128",), "75 80 86 90 100 120 +120", sure=False),
    Wheel((2, 8), (2, 14), ("cu126",), "50 60 70 75 80 86 90"),
    Wheel((2, 8), (2, 10), ("cu128",), "70 75 80 86 90 100 120"),
    Wheel((2, 11), (2, 11), ("cu128",), "75 80 86 90 100 120"),
    Wheel((2, 8), (2, 8), ("cu129",), "70 75 80 86 90 100 120 +120"),
    Wheel((2, 12), (2, 13), ("cu129",), "75 80 86 90 100 120"),
    Wheel((2, 9), (2, 14), ("cu130",), "75 80 86 90 100 120 +120"),
    Wheel((2, 12), (2, 14), ("cu132",), "75 80 86 90 100 120 +120"),
    Wheel((2, 8), (2, 14), ("cu126",), "80 90", "aarch64"),
    Wheel((2, 11), (2, 11), ("cu128",), "80 90 100 120", "aarch64"),
    Wheel((2, 8), (2, 13), ("cu129",), "80 90 100 120", "aarch64"),
    Wheel((2, 9), (2, 14), ("cu130",), "80 90 100 110 120 +120", "aarch64"),
    Wheel((2, 12), (2, 14), ("cu132",), "80 90 100 110 120 +120", "aarch64"),
)
"""Archs as compute capabilities; +120 is PTX."""

ROCM_ARCHS: Final = {
    "6.0": "gfx908 gfx90a gfx942 gfx1030 gfx1100",
    "6.1": "gfx908 gfx90a gfx942 gfx1030 gfx1100",
    "6.2": "gfx908 gfx90a gfx942 gfx1030 gfx1100",
    "6.3": "gfx908 gfx90a gfx942 gfx1030 gfx1100",
    "6.4.1": "gfx908 gfx90a gfx942 gfx1030 gfx1100 gfx1200 gfx1201",
    "7.0": "gfx908 gfx90a gfx942 gfx950 gfx1030 gfx1100 gfx1200 gfx1201",
    "7.1": "gfx950 gfx942 gfx90a gfx908 gfx1201 gfx1200 gfx1101 gfx1100 gfx1030",
    "7.2": "gfx950 gfx942 gfx90a gfx908 gfx1201 gfx1200 gfx1101 gfx1100 gfx1030",
}
"""ROCm: LLVM targets that its compatibility matrix names."""

ROCM_DRIVERS: Final = {
    "7.2": ("30.30", "30.20", "30.10", "6.4"),
    "7.1": ("30.20", "30.10", "6.4"),
    "7.0": ("30.10",),
    "6.3": ("6.1", "6.2", "6.3", "6.4"),
    "6.2": ("6.0", "6.1", "6.2", "6.3", "6.4"),
    "6.1": ("5.7", "6.0", "6.1", "6.2", "6.3"),
    "6.0": ("5.6", "5.7", "6.0", "6.1", "6.2"),
}
"""ROCm user space: releases of AMD's driver package that its matrix names; up to 6.3 those of two
releases around it. From 7.0 the package has numbers of its own; the module's is yet another."""

_GPU: Final = re.compile(r"sm_(?P<number>[0-9]{2,3})(?P<own>[af]?)\Z")


def decode_cuda(number: int) -> str:
    """The CUDA version in an integer of the CUDA API: 11040 is "11.4", 12080 is "12.8"."""
    return f"{number // 1000}.{number % 1000 // 10}"


def cuda_of_driver(driver: str) -> str | None:
    """The highest CUDA that an NVIDIA driver serves; None for a branch that is not known."""
    found = parse_version(driver)
    return BRANCHES.get(found[0][1]) if found else None


def full_driver(toolkit: str) -> str | None:
    """The driver with which all of a CUDA toolkit works, by its release notes, else its installer.

    "12.8" means its first release. None where the table has no such toolkit.
    """
    exact = toolkit if toolkit.count(".") >= 2 else f"{toolkit}.0"
    return NOTED.get(exact) or PACKED.get(exact)


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
    for wheel in WHEELS:
        named = wheel.machine == machine and local in wheel.local
        if named and wheel.first <= minor <= wheel.last:
            return _archs(wheel), wheel.sure
    return None


def _archs(wheel: Wheel) -> tuple[str, ...]:
    return tuple(
        f"compute_{arch[1:]}" if arch[0] == "+" else f"sm_{arch}" for arch in wheel.archs.split()
    )


def rocm_targets(rocm: str) -> tuple[str, ...] | None:
    """The targets that AMD supports in a ROCm; None for one whose matrix was not read.

    Builds for others exist: a target that is missing here is no proof that nothing runs.
    """
    rows = [first for first in ROCM_ARCHS if begins_with(rocm, first)]
    return tuple(ROCM_ARCHS[rows[0]].split()) if rows else None


def serves(built: tuple[str, ...], arch: str) -> bool | None:
    """Whether code for `built` archs runs on a device of `arch`; None where the rule is unknown.

    NVIDIA: machine code runs on the same major with an equal or higher minor, code of an arch
    with a letter on that arch alone, PTX on any equal or later arch. AMD: the very same target.
    """
    if not built:
        return None
    if arch.startswith("gfx"):
        if any(one.endswith("-generic") for one in built):
            return arch in built or None
        return arch in {one.partition(":")[0] for one in built}
    device = _GPU.match(arch)
    if device is None:
        return None
    own = int(device["number"])
    for one in built:
        if one.startswith("compute_") and one[8:].isdecimal() and int(one[8:]) <= own:
            return True
        code = _GPU.match(one)
        if code is None:
            continue
        number = int(code["number"])
        if number == own or (not code["own"] and number // 10 == own // 10 and number <= own):
            return True
    return False
