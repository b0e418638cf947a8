"""What stands behind a device: what its process has open, and what the device says of itself.

No driver of an accelerator works without a device node: a process that has opened the device has
a node open, or memory mapped from one. Where there is none, the host did the work.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice

_COMMON: Final = frozenset(
    f"/dev/{name}"
    for name in (
        *("null", "zero", "full", "random", "urandom", "tty", "ptmx", "console", "kmsg", "fuse"),
        *("stdin", "stdout", "stderr", "net/tun", "log"),
    )
)
_FOLDERS: Final = ("/dev/pts/", "/dev/shm/", "/dev/fd/", "/dev/mqueue/", "/dev/hugepages/")


def device_nodes(proc: Path = Path("/proc/self")) -> list[str]:
    """Nodes under /dev that a process has open or mapped, without those that any process has."""
    names = set()
    try:
        for link in (proc / "fd").iterdir():
            try:
                names.add(os.readlink(link))
            except OSError:  # the descriptor of this listing itself
                continue
        for line in (proc / "maps").read_text(errors="replace").splitlines():
            names.add(line.split(maxsplit=5)[-1])
    except OSError:
        return []
    return sorted(name for name in names if _is_accelerator_s(name))


def _is_accelerator_s(name: str) -> bool:
    name = name.removesuffix(" (deleted)")
    if not name.startswith("/dev/") or name in _COMMON or name.startswith(_FOLDERS):
        return False
    try:
        mode = os.stat(name).st_mode
    except OSError:  # gone, or not ours to look at: it was a node when it was opened
        return True
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


def device_evidence(holder: HeldDevice) -> dict[str, Any]:
    """The device's own name, arch and memory, its C library, and the nodes of this process.

    `name`, `arch` and `total_bytes` are None where the device does not say.
    """
    found: dict[str, Any] = {"name": None, "arch": None, "total_bytes": None, "library": None}
    found["total_bytes"] = _total_bytes(holder)
    runtime: Any = holder.runtime
    index = holder.opened.record.index
    library = getattr(runtime, "library", None)
    if library is not None and hasattr(library, "device_info"):
        info = library.device_info(index)
        found["name"], found["arch"] = info.name or None, info.arch or None
        found["library"] = {"vendor": library.vendor, "version": library.version}
    elif holder.device.type != "cpu":
        found["name"] = _torch_name(holder.device.type, index)
    found["nodes"] = device_nodes()
    return found


def _total_bytes(holder: HeldDevice) -> int | None:
    from vllm_adapter.errors import VllmAdapterError

    try:
        index = holder.opened.record.index
        return int(holder.runtime.query_memory_capacity(index).total_bytes)
    except VllmAdapterError:  # L1.memory.capacity says so
        return None


def _torch_name(kind: str, index: int) -> str | None:
    """As torch's module of the device gives it: `get_device_name`, or the properties' name."""
    import torch

    module = getattr(torch, kind, None)
    ask = getattr(module, "get_device_name", None)
    if ask is None:
        return None
    try:
        return str(ask(index)) or None
    except Exception:  # a vendor's own module may do anything
        return None
