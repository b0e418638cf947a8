"""Which module asks a vendor's own library how its devices are: one of the vendor's adapter.

An adapter names it by an entry point of group `vllm_adapter.health`: the name is the adapter's,
the value a module of its package. The module is run as a child process, so that a library that
crashes or hangs costs that process alone; `reader_lines` tells what it prints.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from typing import Final

from vllm_adapter.discovery.distributions import EntryPoint, entry_points
from vllm_adapter.hostfacts.known_vendors import distribution_of

GROUP: Final = "vllm_adapter.health"
ADAPTERS: Final = "vllm_adapter.adapters"
_RUN: Final = """
import runpy, sys
module, *sys.path = sys.argv[1:]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
_MODULE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class VendorReader:
    """A vendor's reader: the module, and the distribution that brings it."""

    vendor: str
    module: str
    distribution: str

    @property
    def command(self) -> tuple[str, ...]:
        """How it is run: as `python -m MODULE`, with the packages that this process finds.

        Nothing of the working folder is on its path. A variable would change the path of tools
        that are Python programs too, which run beside it.
        """
        folders = [folder for folder in sys.path if os.path.isabs(folder)]
        return (sys.executable, "-P", "-B", "-c", _RUN, self.module, *folders)


def find_readers() -> tuple[dict[str, VendorReader], list[str]]:
    """(the readers by vendor; a sentence for each entry point that is left out).

    A reader counts where its distribution brings the adapter of that name, and for a vendor of
    whom this project has an adapter, where it is that adapter's.
    """
    packages = {
        (point.name, _key(point)): point.value.partition(":")[0]
        for point in entry_points(ADAPTERS)
    }
    found: dict[str, list[VendorReader]] = {}
    left_out: list[str] = []
    for point in sorted(entry_points(GROUP), key=lambda point: (point.name, _key(point))):
        fault = fault_of(point, packages.get((point.name, _key(point))))
        if fault is None:
            reader = VendorReader(point.name, point.value, point.distribution)
            found.setdefault(point.name, []).append(reader)
        else:
            left_out.append(
                f"the package {point.distribution} names {point.value} in {GROUP} for "
                f"{point.name}: {fault}; it is not run"
            )
    for vendor, several in found.items():
        if len(several) > 1:
            names = " and ".join(one.distribution for one in several)
            left_out.append(
                f"the packages {names} both bring an adapter {vendor} with a reader of health: "
                "neither is run; uninstall one"
            )
    return {vendor: several[0] for vendor, several in found.items() if len(several) == 1}, left_out


def fault_of(point: EntryPoint, package: str | None) -> str | None:
    """Why a reader is not run; `package` is that of the adapter of the same distribution."""
    owner = distribution_of(point.name)
    if owner is not None and _key(point) != owner:
        return f"the name is reserved to {owner}"
    if package is None:
        return f"the package brings no adapter {point.name}"
    if not _MODULE.fullmatch(point.value):
        return "that is no module's name"
    if not point.value.startswith(f"{package}."):
        return f"that is no module of the adapter's package {package}"
    return None


def _key(point: EntryPoint) -> str:
    """A distribution's name, as all ways to write it have in common."""
    return re.sub(r"[-_.]+", "-", point.distribution).lower()
