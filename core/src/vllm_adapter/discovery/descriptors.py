"""Which descriptor is a device's, and what is live of it: by PCI id, name or arch, never by guess.

Pure: works on host facts, those of this machine and of a pasted report alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from vllm_adapter.contract.capability import Capability, load_capability
from vllm_adapter.contract.manifest import MAX_DESCRIPTORS, Manifest
from vllm_adapter.contract.sections import ComputeUnit
from vllm_adapter.errors import CapabilityError
from vllm_adapter.hostfacts.facts import Accelerator, HostFacts, PciDevice
from vllm_adapter.hostfacts.match import match

_MATRIX: Final = ("float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "int8", "float32")
"""The dtypes whose unit count is compared with the live one, best first."""


def load_all(manifest: Manifest) -> tuple[Capability, ...]:
    """Every descriptor of an adapter, in the order in which they are tried.

    Raises:
        CapabilityError: a file that cannot be read, or too many of them.
    """
    files = manifest.capability_files()
    if len(files) > MAX_DESCRIPTORS:
        raise CapabilityError(
            f"{manifest.path} names by {manifest.capabilities} more than {MAX_DESCRIPTORS} "
            "descriptors",
            hint="one descriptor is for an arch; name a folder that holds nothing else",
        )
    return tuple(load_capability(file) for file in files)


def narrowed(host: HostFacts, pci: PciDevice | None, accelerator: Accelerator | None) -> HostFacts:
    """The host as if it had this one device, so that conditions hold of it and of no other.

    An accelerator without a PCI function is nobody's in particular; with neither, the host stays.
    """
    if accelerator is None:
        return host if pci is None else replace(host, pci=(pci,))
    return replace(host, pci=() if pci is None else (pci,), accelerators=(accelerator,))


def choose(
    candidates: Sequence[Capability], host: HostFacts, arch: str | None = None
) -> Capability | None:
    """The descriptor of a device, from facts that `narrowed` made; None if none is for it.

    One that matches wins over one without conditions; a name over a PCI id (bins share an id), and
    either over an arch alone and what is written for all other devices of an arch. Among those
    one of the device's own arch, if that is known and any is of it. Errors as `match`.
    """
    best: tuple[int, Capability] | None = None
    of_arch = [one for one in candidates if arch is not None and one.identity.arch == arch]
    for one in _matching(of_arch, host) or _matching(candidates, host):
        if best is None or one[0] > best[0]:
            best = one
    return best[1] if best else None


def _matching(candidates: Iterable[Capability], host: HostFacts) -> list[tuple[int, Capability]]:
    found = []
    for one in candidates:
        if not one.match:
            found.append((0, one))
            continue
        ranks = [_rank(entry) for entry in one.match if match([entry], host) is not None]
        if ranks:
            for_all_others = any(set(entry) == {"arch"} for entry in one.match)
            found.append((1 if for_all_others else max(ranks), one))
    return found


def _rank(entry: Mapping[str, Any]) -> int:
    """How much an entry says of a device."""
    if "device_name" in entry:
        return 3
    return 2 if "pci_device" in entry else 1


def live_values(
    capability: Capability, *, units: int | None = None, memory_bytes: int | None = None
) -> dict[str, Any]:
    """What a device says of itself, in a descriptor's shape, for `Capability.refined`.

    With fewer or more compute units than the descriptor has (a partition, a cut-down bin) rates
    scale with them, and the memory bandwidth is unknown: nobody knows a part's share of it.
    """
    live: dict[str, Any] = {}
    if memory_bytes:
        live["memory"] = {"capacity_bytes": memory_bytes}
    described = next(
        (
            unit.units
            for dtype in _MATRIX
            if (unit := capability.compute_units.get(dtype)) is not None and unit.units
        ),
        None,
    )
    if not units or not described or units == described:
        return live
    share = units / described
    live["compute_units"] = {
        dtype: _scaled(unit, share)
        for dtype, unit in capability.compute_units.items()
        if unit.units is not None or unit.throughput_gflops is not None
    }
    live.setdefault("memory", {})["bandwidth_gb_s"] = None
    return live


def _scaled(unit: ComputeUnit, share: float) -> dict[str, Any]:
    scaled: dict[str, Any] = {}
    if unit.units is not None:
        scaled["units"] = max(1, round(unit.units * share))
    if unit.throughput_gflops is not None:
        scaled["throughput_gflops"] = unit.throughput_gflops * share
    return scaled
