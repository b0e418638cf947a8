"""An open C library: its table, whole, and calls that raise typed errors.

`Library(path)` loads a file into this process, and a file that crashes when it is loaded ends
the process: `vllm_adapter.discovery.probe.library` asks it in a child first.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vllm_adapter.c_abi import abi
from vllm_adapter.c_abi.status import error_of
from vllm_adapter.c_abi.table import read_table
from vllm_adapter.errors import LibraryError, NoSuchDevice, VllmAdapterError

Function = Callable[..., Any]
"""A function of the table as ctypes calls it; most give a status."""


@dataclass(frozen=True, slots=True)
class LibraryDevice:
    """What a library says of one device.

    `capability` is None where the vendor has no such number, `subgroup_size` and `units` 0 where
    there are none or the library does not know. `alignment_bytes` is that of an allocation that
    asks for none.
    """

    name: str
    arch: str
    capability: tuple[int, int] | None
    unified: bool
    subgroup_size: int
    units: int
    alignment_bytes: int
    total_bytes: int


class Library:
    """One C library in this process. Safe to use from any thread.

    `functions` holds the table's functions by name, without those that are NULL. After the first
    `open`, a forked child gets ForkedDevice from every call, and the library is not asked.

    Raises:
        LibraryError: the file cannot be loaded, or its table cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = load(path)  # the table lives as long as the library is loaded
        self.api = read_table(path, self._handle)
        self.vendor = _text(self.api.vendor)
        self.version = _text(self.api.version)
        self.abi_version: tuple[int, int] = (self.api.abi_major, self.api.abi_minor)
        self.functions: Mapping[str, Function] = {
            name: function for name in abi.FUNCTIONS if (function := getattr(self.api, name))
        }
        self._count: int | None = None
        self._opening = threading.Lock()
        self._opened: set[int] = set()
        self._forked = False
        _LOADED.add(self)

    def has(self, name: str) -> bool:
        """Whether the table offers a function."""
        return name in self.functions

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function that gives a status; integers must fit the C types.

        Raises:
            DeviceError, UnsupportedCase: what the status stands for (`clib.status`).
        """
        status = self.ask(name, *arguments)
        if status:
            raise self.error(status, name)

    def ask(self, name: str, *arguments: Any) -> int:
        """As `call`, for a function whose status may say something else than a failure.

        Raises:
            ForkedDevice: this is a forked child.
            UnsupportedCase: the library leaves the function NULL.
        """
        if self._forked:
            raise self.error(abi.FORKED, name)
        function = self.functions.get(name)
        if function is None:
            raise error_of(abi.UNSUPPORTED, f"{self.path.name}: {name}", "the function is NULL")
        status: int = function(*arguments)
        return status

    def error(self, status: int, name: str) -> VllmAdapterError:
        """The typed error of a status that the function `name` just gave in this thread."""
        # A forked child may not even ask; and what it would hear is of another call.
        raw = b"" if status == abi.FORKED else self.functions["last_error"]()
        return error_of(status, f"{self.path.name}: {name}", _text(raw))

    def device_count(self) -> int:
        """How many devices there are: the same as long as the process lives."""
        if self._count is not None and not self._forked:
            return self._count
        count = ctypes.c_int32(-1)
        self.call("device_count", ctypes.byref(count))
        if count.value < 0:
            raise LibraryError(
                f"{self.path}: device_count gives {count.value}",
                hint="report it to the library's vendor",
            )
        self._count = count.value
        return count.value

    def device_info(self, device_id: int) -> LibraryDevice:
        """What the library says of a device; it need not be opened."""
        self.check_device(device_id)
        raw = abi.VaDeviceInfo(size=ctypes.sizeof(abi.VaDeviceInfo))
        self.call("device_info", device_id, ctypes.byref(raw))
        pair = (raw.capability_major, raw.capability_minor)
        return LibraryDevice(
            name=_text(raw.name),
            arch=_text(raw.arch),
            capability=pair if min(pair) >= 0 else None,
            unified=raw.unified == 1,
            subgroup_size=raw.subgroup_size,
            units=raw.units,
            alignment_bytes=raw.alignment,
            total_bytes=raw.total_memory,
        )

    def open(self, device_id: int) -> None:
        """Opens a device; once is enough, and again costs a look into a set.

        Raises:
            NoSuchDevice, DeviceLost, ForkedDevice, DeviceError: the device cannot be used.
        """
        if device_id in self._opened and not self._forked:
            return
        self.check_device(device_id)
        with self._opening:
            self.call("open", device_id)
            self._opened.add(device_id)

    def check_device(self, device_id: int) -> None:
        """Raises NoSuchDevice unless the index is one of the library's."""
        count = self.device_count()
        if not 0 <= device_id < count:
            raise NoSuchDevice(
                f"{self.path.name} has no device {device_id}; it has {count}",
                hint="`vllm-adapter list --probe` shows the devices that can be used",
            )

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked from one that had opened a device."""
        return self._forked

    def _after_fork(self) -> None:
        # Asked of us, not of the library alone: its locks may be held by threads that are gone.
        self._opening = threading.Lock()
        self._forked = bool(self._opened)


_LOADED: Final[weakref.WeakSet[Library]] = weakref.WeakSet()


def _mark_forked() -> None:
    for library in _LOADED:
        library._after_fork()


if hasattr(os, "register_at_fork"):  # no fork elsewhere
    os.register_at_fork(after_in_child=_mark_forked)


def load(path: Path) -> ctypes.CDLL:
    """The file in this process; again costs nothing.

    Raises:
        LibraryError: what the system's loader says.
    """
    try:
        # A name without a slash would be looked for in the loader's own folders.
        return ctypes.CDLL(str(path.absolute()), mode=ctypes.RTLD_LOCAL)
    except OSError as error:
        raise LibraryError(
            f"{path} cannot be loaded: {' '.join(str(error).split())}",
            hint="`ldd` on the file shows the libraries that it misses",
        ) from None


def reproduce_command(path: Path) -> str:
    """The command that shows a library's crash or hang without our guards."""
    child = "vllm_adapter.discovery.probe._library_child"
    return f"python -X faulthandler -m {child} {shlex.quote(str(path))}"


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode(errors="replace").strip()
