"""What a process has loaded, and what its device says of itself: asked before the process ends.

The standard library alone: it runs beside the adapter, in a process that has nothing of the judge.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice

_MAPS: Final = Path("/proc/self/maps")
_DELETED: Final = " (deleted)"


def loaded_files() -> list[str]:
    """Every file whose code this process has: of its modules, and shared libraries mapped into it.

    Absolute paths as the process has them, sorted; a module that was read from a .pyc alone has
    that. What a module has taken out of `sys.modules` again is not seen.
    """
    found = {file for module in [*sys.modules.values()] if (file := _file_of(module))}
    return sorted(found | _mapped())


def what_ran(device: HeldDevice) -> dict[str, Any]:
    """The files that the device's process has loaded, and what its runtime says of the device.

    `facts` has `memory_bytes`, where the device was opened and its runtime can say it.
    """
    facts: dict[str, Any] = {}
    if "opened" in vars(device):
        with suppress(Exception):  # a rule of L1 says so; here it is a fact that is not known
            capacity = device.runtime.query_memory_capacity(device.index)
            facts["memory_bytes"] = int(capacity.total_bytes)
    return {"files": loaded_files(), "facts": facts}


def _file_of(module: object) -> str | None:
    """A module's file. Modules may be anything, and answer anything."""
    try:
        file = getattr(module, "__file__", None)
    except BaseException:  # a vendor's lazy module may raise what it likes
        return None
    # torch.ops and the like have names that are no paths.
    return os.path.normpath(file) if isinstance(file, str) and os.path.isabs(file) else None


def _mapped() -> set[str]:
    """Files of which a part is mapped as code. One that was deleted since counts too."""
    try:
        lines = _MAPS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return set()  # no Linux: modules alone
    found = set()
    for line in lines:
        parts = line.split(None, 5)
        if len(parts) == 6 and "x" in parts[1] and parts[5].startswith("/"):
            found.add(parts[5].removesuffix(_DELETED))
    return found
