"""`--device-profile NAME[:N]`: a descriptor of an installed adapter, or of a file, N times.

NAME is a file's stem or the end of it ("mi300x" for gfx942-mi300x.json); nothing is guessed.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vllm_adapter.contract.capability import Capability, load_capability
from vllm_adapter.errors import InputError
from vllm_adapter.planning.box import PlanBox, profile_box

if TYPE_CHECKING:
    from vllm_adapter.discovery.records import AdapterRecord

MOST: Final = 1024


def box_of_profile(text: str, folder: Path | None = None) -> PlanBox:
    """The devices that a profile names. With `folder`, that package's descriptors alone.

    Raises:
        InputError: no such descriptor, or several; the hint lists those there are.
    """
    name, count = _counted(text)
    path = Path(name)
    if name.endswith(".json") or "/" in name:
        capability = load_capability(path)
        adapter = capability.identity.torch_type or "device"
        return profile_box(capability, adapter, count, f"descriptor {path}")
    known = _descriptors(folder)
    wanted = name.lower()
    found = [one for one in known if one[0].stem.lower() == wanted]
    found = found or [one for one in known if one[0].stem.lower().endswith(f"-{wanted}")]
    found = found or [one for one in known if f"-{wanted}-" in f"-{one[0].stem.lower()}-"]
    if len(found) == 1:
        file, adapter, record = found[0]
        origin = f"profile {file.stem} of adapter {adapter}"
        return profile_box(load_capability(file), adapter, count, origin, record)
    stems = sorted(file.stem for file, _, _ in found or known)
    if found:
        raise InputError(
            f"the device profile {name!r} is that of {len(found)} descriptors",
            hint=f"name one of {', '.join(stems)}",
        )
    near = difflib.get_close_matches(wanted, [_product(stem) for stem in stems], n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    raise InputError(
        f"no installed adapter has a descriptor for {name[:60]!r}",
        hint=f"{meant}install the vendor's adapter (such as vllm-adapter-rocm), give a "
        f"descriptor's path, or one of: {', '.join(stems) or 'none is installed'}",
    )


def _counted(text: str) -> tuple[str, int]:
    name, colon, digits = text.rpartition(":")
    if not colon:
        return text, 1
    if not (digits.isascii() and digits.isdigit() and 1 <= int(digits[:9]) <= MOST):
        raise InputError(
            f"the device profile {text[:60]!r} has no number of devices behind its colon",
            hint=f"write a number from 1 to {MOST} behind it, such as mi300x:8",
        )
    return name, int(digits[:9])


def _product(stem: str) -> str:
    return stem.partition("-")[2] or stem


def _descriptors(folder: Path | None) -> list[tuple[Path, str, AdapterRecord | None]]:
    from vllm_adapter.contract.manifest import read_manifest

    if folder is not None:
        manifest = read_manifest(folder / "adapter.json")
        return [(file, manifest.name, None) for file in manifest.capability_files()]
    from vllm_adapter.discovery.registry import scan
    from vllm_adapter.settings import Settings

    return [
        (file, record.name, record)
        for record in scan(Settings())
        if record.manifest is not None and record.manifest.device is not None
        for file in record.manifest.capability_files()
    ]


def box_of_capability(capability: Capability, adapter: str, record: AdapterRecord) -> PlanBox:
    """One device that is open here, with its live descriptor."""
    return profile_box(capability, adapter, 1, f"this machine's {adapter}", record)
